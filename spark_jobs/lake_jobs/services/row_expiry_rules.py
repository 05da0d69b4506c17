"""Which rows are expired, by the type of their column, and from which file groups one run deletes them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_lake_provider.instant_clock import DAY_MS
from airflow_lake_provider.job_contract import (
    TTL_COLUMN,
    TTL_COLUMN_DAYS,
    TTL_COLUMN_MODE,
    TTL_COLUMN_UNIT,
    TTL_MAX_FILE_GROUPS,
    TTL_MAX_ROWS,
)
from lake_jobs.services.ttl_rules import TtlSettingError, read_whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PER_MS = {"s": (1, 1000), "ms": (1, 1), "us": (1000, 1)}
"""For each unit of a column of whole numbers, by what ms are multiplied and divided."""
_WHOLE = frozenset({"int", "bigint"})
_NAME = re.compile(r"(?!_hoodie_)[A-Za-z_][A-Za-z0-9_]*")
_FIRST_PLAUSIBLE_MS = 315_532_800_000
"""1980: an earlier value of a whole number is more likely of another unit."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MIN_MS = -62_135_596_800_000
"""The year 1."""


@dataclass(frozen=True, slots=True)
class RowRules:
    """Rows expire whose column is older than `days`; one run deletes them from so many file groups at most."""

    column: str
    days: int
    unit: str
    """Empty for dates and timestamps."""
    deletes: bool
    max_rows: int
    max_file_groups: int


@dataclass(frozen=True, slots=True)
class Expiry:
    """Conditions and a value of a row, as SQL, and the limit for people."""

    is_expired: str
    is_implausible: str
    """That the value is one of another unit; `false` where there are no units."""
    order: str
    """A whole number, the smaller the older."""
    limit: str


@dataclass(frozen=True, slots=True)
class ExpiredGroup:
    """A file group with expired rows; `oldest` is the smallest `Expiry.order` of them."""

    partition: str
    file_id: str
    rows: int
    oldest: int


def read_row_rules(settings: Mapping[str, str], table: str) -> RowRules:
    """Return the rules that the options say. Raises TtlSettingError."""
    column = settings.get(TTL_COLUMN, "")
    if not _NAME.fullmatch(column):
        raise TtlSettingError(f"{table}: {TTL_COLUMN} is {column!r}, it must be a column of the table's own")
    unit = settings.get(TTL_COLUMN_UNIT, "")
    if unit and unit not in PER_MS:
        raise TtlSettingError(f"{table}: {TTL_COLUMN_UNIT} is {unit!r}, allowed: {', '.join(PER_MS)}")
    mode = settings.get(TTL_COLUMN_MODE, "delete")
    if mode not in {"delete", "report"}:
        raise TtlSettingError(f"{table}: {TTL_COLUMN_MODE} is {mode!r}, allowed: delete, report")
    return RowRules(
        column,
        read_whole_number(settings, TTL_COLUMN_DAYS, "", table),
        unit,
        mode == "delete",
        read_whole_number(settings, TTL_MAX_ROWS, "1000000", table),
        read_whole_number(settings, TTL_MAX_FILE_GROUPS, "100", table),
    )


def find_expiry(column_type: str, rules: RowRules, now_ms: int, table: str) -> Expiry:
    """Return how expired rows are found in a column of this type (Spark's name). Raises TtlSettingError.

    Nothing expires by null, and by a whole number of 0 or less, with which writers say that they know no time.
    """
    limit_ms = max(now_ms - rules.days * DAY_MS, _MIN_MS)
    limit = _EPOCH + timedelta(milliseconds=limit_ms)
    text = limit.replace(tzinfo=None).isoformat(" ", "seconds")
    name = f"`{rules.column}`"
    if column_type in _WHOLE and rules.unit:
        times, by = PER_MS[rules.unit]
        older = f"{name} > 0 AND {name} < {limit_ms * times // by}"
        implausible = f"{name} > 0 AND {name} < {_FIRST_PLAUSIBLE_MS * times // by}"
        return Expiry(older if limit_ms > 0 else "false", implausible, f"CAST({name} AS BIGINT)", f"{text} UTC")
    if rules.unit:
        raise TtlSettingError(
            f"{table}: {rules.column} is a {column_type}, and ttl.column_unit is of columns of whole numbers: remove it"
        )
    if column_type == "date":
        # The whole of a day must be older, so the limit is the day before which all are.
        day = limit.date().isoformat()
        return Expiry(f"{name} < DATE'{day}'", "false", f"CAST(unix_date({name}) AS BIGINT)", day)
    if column_type in {"timestamp", "timestamp_ntz"}:
        kind, zone = ("TIMESTAMP", " UTC") if column_type == "timestamp" else ("TIMESTAMP_NTZ", "")
        order = f"CAST(CAST({name} AS TIMESTAMP) AS BIGINT)"
        return Expiry(f"{name} < {kind}'{text}{zone}'", "false", order, f"{text} UTC")
    if column_type in _WHOLE:
        raise TtlSettingError(
            f"{table}: {rules.column} is a {column_type}: set ttl.column_unit, what it counts since the epoch "
            f"({', '.join(PER_MS)})"
        )
    raise TtlSettingError(
        f"{table}: {rules.column} is a {column_type}, and rows expire by a date, a timestamp or a whole number: "
        "name another ttl.column"
    )


def choose_groups(groups: Iterable[ExpiredGroup], rules: RowRules) -> tuple[ExpiredGroup, ...]:
    """Return the file groups from which this run deletes, those with the oldest rows first, each as a whole.

    The first one goes in any case, or a file group with more rows than allowed would keep them indefinitely.
    """
    chosen: list[ExpiredGroup] = []
    rows = 0
    for group in sorted(groups, key=lambda each: (each.oldest, each.partition, each.file_id)):
        rows += group.rows
        if chosen and (rows > rules.max_rows or len(chosen) == rules.max_file_groups):
            break
        chosen.append(group)
    return tuple(chosen)
