"""What services of each table cost and brought, by day: the bill, next to what was predicted.

An executor's report adds to the row of its day, so the records of runs may be thinned, and a quiet table costs nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.instant_clock import DAY_MS
from airflow_lake_provider.manager.db.schema import lake_bill, lake_search, lake_table
from airflow_lake_provider.manager.db.search import audience_clauses
from airflow_lake_provider.manager.read_model import BillLine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import ColumnElement, RowMapping
    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.access import Audience

KEEP_DAYS = 31
MAX_LINES = 1000
FIGURES = (
    "runs", "failed_tries", "core_ms", "bytes_out", "files_in", "files_out", "expected_core_ms", "expected_bytes",
)  # fmt: skip


class BillBy(StrEnum):
    """What a line of the bill is about."""

    TABLE = "table"
    OWNER = "owner"
    LABEL = "label"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class BillKey:
    """Whose costs they are, on which day."""

    table_id: str
    service: str
    day_ms: int


def day_of(now_ms: int) -> int:
    """Return when the day began, UTC."""
    return now_ms - now_ms % DAY_MS


def add_to_bill(session: Session, key: BillKey, label: str | None, figures: Mapping[str, int]) -> None:
    """Add figures to the table's day. `label` is None of a run without a decision, which keeps the table's."""
    if _raise(session, key, label, figures):
        return
    row = lake_bill.c
    if label is None:
        newest = select(row.label).where(row.table_id == key.table_id).order_by(row.day_ms.desc()).limit(1)
        label = session.scalar(newest) or ""
    values = asdict(key) | {"label": label} | dict.fromkeys(FIGURES, 0) | dict(figures)
    try:
        with session.begin_nested():
            session.execute(insert(lake_bill).values(**values))
    except IntegrityError:
        # A try that has ended may report while the next one does: that report began the day.
        _raise(session, key, label, figures)


def _raise(session: Session, key: BillKey, label: str | None, figures: Mapping[str, int]) -> bool:
    row = lake_bill.c
    mine = and_(row.table_id == key.table_id, row.service == key.service, row.day_ms == key.day_ms)
    sums: dict[str, Any] = {name: row[name] + value for name, value in figures.items()}
    if label is not None:
        sums["label"] = label
    raised: Any = session.execute(update(lake_bill).where(mine).values(**sums))
    return bool(raised.rowcount)


def forget_old_bills(session: Session, now_ms: int) -> None:
    """Delete the days that no bill counts any more."""
    session.execute(delete(lake_bill).where(lake_bill.c.day_ms < day_of(now_ms) - KEEP_DAYS * DAY_MS))


def load_bill(session: Session, by: BillBy, since_ms: int, audience: Audience) -> list[BillLine]:
    """Return the lines of the bill since a day, the most expensive first: `MAX_LINES`, and one more if there are."""
    row = lake_bill.c
    short = lake_search.c
    audible = audience_clauses(audience)
    seen = [row.table_id.in_(select(short.table_id).where(*audible))] if audible else []
    kept = {BillBy.LABEL: [row.label], BillBy.SERVICE: [row.service]}.get(by, [])
    # Summed by table before the join: days are thirty times as many rows as tables.
    sums = [func.sum(row[figure]).label(figure) for figure in FIGURES]
    own = (
        select(row.table_id, *kept, *sums).where(row.day_ms >= since_ms, *seen).group_by(row.table_id, *kept).subquery()
    )
    names: Mapping[BillBy, tuple[ColumnElement[Any], ...]] = {
        BillBy.TABLE: (short.table_name, lake_table.c.base_path),
        BillBy.OWNER: (short.owner,),
    }
    name, *path = names.get(by) or (own.c[by.value],)
    totals = [func.sum(own.c[figure]).label(figure) for figure in FIGURES]
    query = (
        select(name.label("name"), *path, *totals)
        .join(lake_search, short.table_id == own.c.table_id)
        .join(lake_table, lake_table.c.table_id == own.c.table_id)
        .group_by(*([own.c.table_id] if path else []), name, *path)
        .order_by(func.sum(own.c.core_ms).desc(), name)
        .limit(MAX_LINES + 1)
    )
    return [_line(row) for row in session.execute(query).mappings()]


def _line(row: RowMapping) -> BillLine:
    figures = {name: int(row[name] or 0) for name in FIGURES}
    return BillLine(
        name=row["name"],
        base_path=row.get("base_path", ""),
        runs=figures["runs"],
        failed_tries=figures["failed_tries"],
        core_s=round(figures["core_ms"] / 1000, 1),
        expected_core_s=round(figures["expected_core_ms"] / 1000, 1),
        rewritten_bytes=figures["bytes_out"],
        expected_bytes=figures["expected_bytes"],
        files_before=figures["files_in"],
        files_after=figures["files_out"],
        files_saved=figures["files_in"] - figures["files_out"],
    )
