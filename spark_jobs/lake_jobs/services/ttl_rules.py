"""Which partitions are expired: a pure function over when each was last written, and the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.instant_clock import DAY_MS, shift_instant_time
from airflow_lake_provider.shared.hudi_settings import TTL_DAYS, TTL_MAX_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

STRATEGY = "hoodie.partition.ttl.management.strategy.type"
STRATEGY_CLASS = "hoodie.partition.ttl.strategy.class"
_SECONDS = 14


class TtlSettingError(ValueError):
    """The settings do not say when a partition is expired, or name a strategy that this service does not have."""


@dataclass(frozen=True, slots=True)
class TtlRules:
    """Partitions whose last write is older than `days` are deleted, at most `most` at once, the oldest first."""

    days: int
    most: int


def read_rules(settings: Mapping[str, str], table: str) -> TtlRules:
    """Return the rules that Hudi's own settings say. Raises TtlSettingError for what is not supported here."""
    strategy = settings.get(STRATEGY_CLASS, "") or settings.get(STRATEGY, "KEEP_BY_TIME")
    if strategy.upper() != "KEEP_BY_TIME":
        raise TtlSettingError(f"{table}: the TTL strategy {strategy} is not supported, only KEEP_BY_TIME")
    days = read_whole_number(settings, TTL_DAYS, "", table)
    return TtlRules(days, read_whole_number(settings, TTL_MAX_PARTITIONS, "1000", table))


def read_whole_number(settings: Mapping[str, str], key: str, default: str, table: str) -> int:
    """Return a setting that is a whole number from 1. Raises TtlSettingError."""
    value = settings.get(key, default).strip()
    if not (value.isascii() and value.isdigit() and int(value) > 0):
        raise TtlSettingError(f"{table}: {key} is {value or 'not set'}, it must be a whole number from 1")
    return int(value)


def find_expired(last_writes: Mapping[str, str], now: str, rules: TtlRules) -> tuple[str, ...]:
    """Return the partitions whose last write (an instant time) is too old at another instant time, the oldest first."""
    # Moved back within its own zone; empty, and so before each write, where it would lie before the calendar.
    limit = shift_instant_time(now, -rules.days * DAY_MS)[:_SECONDS]
    old = [(last, partition) for partition, last in last_writes.items() if last[:_SECONDS] < limit]
    return tuple(partition for _, partition in sorted(old)[: rules.most])
