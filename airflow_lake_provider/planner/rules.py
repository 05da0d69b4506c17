"""The rules of a policy against what a table shows, and how several of them make one answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.timeline.loader import instant_time_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_lake_provider.timeline.instant import Instant

ALL = "all"
"""The value of `combine` with which every rule that is on must hold."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what was found beside its threshold, in words, and whether it holds. One that is off never counts."""

    says: str
    holds: bool
    is_on: bool = True
    ripe_ms: int | None = None
    """When a rule of time will hold if nothing else happens; None for all others."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """The answer of all rules. `look_again_ms` is when time alone may change it; None when it cannot."""

    is_due: bool
    says: str
    look_again_ms: int | None = None


def rule_of_count(says: str, count: int, least: int | None) -> Rule:
    """Return the rule that there are at least so many; off without a threshold."""
    if least is None:
        return Rule(f"{says} (rule: off)", holds=False, is_on=False)
    return Rule(f"{says} (rule: {least})", holds=count >= least)


def rule_of_age(waiting: Sequence[Instant], max_age_s: float | None, now_ms: int, time_zone: str) -> Rule | None:
    """Return the rule of how long the first of the writes, by completion, may wait; None when it is off."""
    if max_age_s is None:
        return None
    if not waiting:
        return Rule(f"nothing waits (rule: {max_age_s:,.0f} s)", holds=False)
    since_ms = instant_time_ms(waiting[0].completed_time or waiting[0].requested_time, time_zone)
    if since_ms is None:
        return Rule(f"nothing says since when the oldest write waits (rule: {max_age_s:,.0f} s)", holds=False)
    ripe_ms = since_ms + int(max_age_s * 1000)
    says = f"the oldest write waits for {(now_ms - since_ms) / 1000:,.0f} s (rule: {max_age_s:,.0f} s)"
    return Rule(says, holds=now_ms >= ripe_ms, ripe_ms=ripe_ms)


def combine_rules(rules: Sequence[Rule | None], combine: str) -> Ruling:
    """Return what the rules say together: due by any of them, or by all that are on (`combine: all`)."""
    shown = [rule for rule in rules if rule is not None]
    active = [rule for rule in shown if rule.is_on]
    held = [rule for rule in active if rule.holds]
    is_due = bool(held) and (combine != ALL or len(held) == len(active))
    if is_due:
        return Ruling(is_due=True, says=" and ".join(rule.says for rule in held))
    open_times = [rule.ripe_ms for rule in active if not rule.holds]
    times = [ripe_ms for ripe_ms in open_times if ripe_ms is not None]
    look_again_ms = min(times, default=None)
    if combine == ALL:
        look_again_ms = max(times) if times and len(times) == len(open_times) else None
    return Ruling(is_due=False, says="; ".join(rule.says for rule in shown), look_again_ms=look_again_ms)
