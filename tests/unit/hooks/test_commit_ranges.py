"""A run's events of commits become ranges that a reader reads, each once."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from airflow.api_fastapi.core_api.datamodels.assets import CreateAssetEventsBody

from airflow_lake_provider.hooks.commit_ranges import CommitRange, find_ranges
from airflow_lake_provider.manager.loop.commit_events import CommitEvent


@dataclass
class Event:
    """An asset event, as far as a task sees it."""

    extra: dict[str, Any] | None = field(default_factory=dict)


def event(after: str, until: str, commits: int = 1, *, is_from_trigger: bool = False) -> Event:
    extra = CommitEvent(after, until, until, commits).to_extra("/lake/orders", "orders")
    return Event({"from_trigger": True, "payload": extra} if is_from_trigger else extra)


def test_ranges_that_adjoin_are_one_in_any_order_and_repeated_events_count_once() -> None:
    events = [event("0", "1"), event("1", "2", 3), event("2", "3"), event("1", "2", 3)]
    random.Random(1).shuffle(events)
    assert find_ranges(events) == (CommitRange("/lake/orders", "0", "3", "3"),)


def test_a_late_commit_within_a_range_of_the_run_is_read_once() -> None:
    found = find_ranges([event("1", "5"), event("2", "3"), event("4", "6")])
    assert [(r.after, r.until) for r in found] == [("1", "6")]


def test_a_gap_stays_a_gap() -> None:
    found = find_ranges([event("0", "1"), event("2", "3", is_from_trigger=True)])
    assert [(r.after, r.until) for r in found] == [("0", "1"), ("2", "3")]


def test_events_of_services_and_those_without_commits_have_no_range() -> None:
    others = [Event({"service": "compaction", "instants": ["1"]}), Event(None), Event({}), event("3", "3", 0)]
    assert find_ranges(others) == ()


def test_ranges_of_two_tables_of_one_asset_stay_apart() -> None:
    other = event("1", "2")
    assert other.extra is not None
    other.extra["base_path"] = "/lake/returns"
    expected = (CommitRange("/lake/orders", "0", "1", "1"), CommitRange("/lake/returns", "1", "2", "2"))
    assert find_ranges([other, event("0", "1")]) == expected


def test_events_that_a_user_made_by_airflows_api_choose_no_table_and_no_folder() -> None:
    body = CommitEvent("0", "../../bank/accounts", "9").to_extra("/lake/bank/accounts", "accounts")
    asked = {"asset_id": 1, "extra": body}
    nested = {"asset_id": 1, "extra": {"from_trigger": True, "payload": body, "from_rest_api": False}}
    stored = [Event(dict(CreateAssetEventsBody.model_validate(one).extra)) for one in (asked, nested)]
    assert find_ranges([*stored, event("0", "1")]) == (CommitRange("/lake/orders", "0", "1", "1"),)


def test_times_that_are_none_are_no_range() -> None:
    odd = [event("0", "../2"), event("x", "3"), event("0", "1\n"), event("0", "\u0661")]
    assert find_ranges([*odd, event("", "4")]) == (CommitRange("/lake/orders", "", "4", "4"),)
