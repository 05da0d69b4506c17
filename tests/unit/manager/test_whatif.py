"""Recorded decisions, replayed under other budgets: what it costs, what waits, and for how long."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.instant_clock import DAY_MS, HOUR_MS
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.operations import RunReport, report_run
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.runs.airflow_runs import RunState
from airflow_lake_provider.manager.scheduling.run_scheduler import RunScheduler
from airflow_lake_provider.manager.scheduling.whatif import (
    PastDecision,
    load_decisions,
    parse_span_ms,
    replay,
    to_svg,
    under_policy,
    with_budgets,
)
from airflow_lake_provider.planner.rules import Decision, Verdict
from tests.unit.manager.conftest import FakeClock, FakeRunGateway

END_MS = 30 * DAY_MS


def past(number: int, due_ms: int = 0, seconds: float = 3600, **changes: object) -> PastDecision:
    name = f"t{number}"
    one = PastDecision(name, f"/lake/{name}", name, "ada", "compaction", due_ms, 0, seconds, 1, 100, 2)
    return replace(one, **changes)  # type: ignore[arg-type]


def budgets(text: str) -> TablesConfig:
    return parse_tables_file(f"budgets: {text}", "tables.yaml")


def test_without_a_budget_everything_starts_when_it_is_due() -> None:
    found = replay([past(1), past(2), past(3, HOUR_MS)], TablesConfig(), END_MS)
    assert (found.started, found.waiting, found.core_hours, found.points, found.bytes) == (3, 0, 3.0, 6.0, 300)
    assert found.waits_s == (0, 0, 0)


def test_slot_is_used_one_after_the_other_in_the_ranked_order() -> None:
    later_first = [past(1, delay_ms=HOUR_MS), past(2, delay_ms=0), past(3, delay_ms=2 * HOUR_MS)]
    found = replay(later_first, budgets("{all: {slots: 1}}"), END_MS)
    assert found.waits_s == (0, 3600, 7200)
    assert found.figures().most_core_hours_waiting == 2


def test_core_hours_of_a_day_are_spent_and_come_back_a_day_later() -> None:
    found = replay([past(n) for n in range(5)], budgets("{all: {core_hours_per_day: 2}}"), END_MS)
    assert found.waits_s == (0, 0, 86_400, 86_400, 172_800)
    assert replay([past(n) for n in range(5)], budgets("{all: {core_hours_per_day: 2}}"), DAY_MS // 2).waiting == 3
    costly = replay([past(1, seconds=3 * 3600)], budgets("{all: {core_hours_per_day: 2}}"), END_MS)
    assert (costly.over_budget, costly.started, costly.waiting) == (1, 0, 0)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), slots=st.integers(1, 4), hours=st.floats(1.0, 20.0))
def test_whatever_is_replayed_starts_once_and_no_day_costs_more_than_its_budget(
    seed: int, slots: int, hours: float
) -> None:
    rng = random.Random(seed)
    decisions = sorted(
        (
            past(n, rng.randrange(5 * DAY_MS), rng.uniform(60, 3600), delay_ms=rng.randrange(3 * DAY_MS))
            for n in range(40)
        ),
        key=lambda one: one.due_ms,
    )
    tables = budgets(f"{{all: {{slots: {slots}, core_hours_per_day: {hours:.3f}}}}}")
    found = replay(decisions, tables, 10**13)
    assert (found.started, found.waiting, found.over_budget) == (40, 0, 0)
    assert min(found.waits_s) >= 0
    larger = replay(decisions, with_budgets(budgets(f"{{all: {{slots: {slots}}}}}"), ["1000"]), 10**13)
    assert sum(larger.waits_s) <= sum(found.waits_s) + 1
    assert larger.core_hours == pytest.approx(found.core_hours)


def test_other_policies_leave_out_join_and_add_decisions() -> None:
    counted = [past(1, at * HOUR_MS, count=5) for at in range(6)]
    observed = past(2, is_observed=True)

    def decided(text: str) -> list[tuple[str, float]]:
        return [(d.table_id, d.points) for d, _ in under_policy([*counted, observed], parse_tables_file(text, "f"))]

    assert decided("defaults: {compaction: {delta_commits: 5}}") == [("t1", 2)] * 6
    assert decided("defaults: {compaction: {delta_commits: 15}}") == [("t1", 6)] * 2
    assert decided("defaults: {compaction: {enabled: false}}") == []
    assert decided("defaults: {compaction: {paused: ada}}") == []
    assert decided("defaults: {mode: observe}") == []
    assert decided("defaults: {mode: manage}")[-1] == ("t2", 2)


def test_decisions_are_loaded_with_the_cost_of_their_runs_and_what_still_waits(
    registry: Registry, gateway: FakeRunGateway, clock: FakeClock
) -> None:
    tables = budgets("{all: {slots: 1}}")
    scheduler = RunScheduler(registry, gateway, lambda: tables)
    evidence = {"log_bytes": 1 << 20, "log_files": 3, "merged_groups": 1, "merged_base_bytes": 0, "delta_commits": 7}
    due = Decision(Service.COMPACTION, Verdict.DUE, "due", key_instant="20261121120001000", evidence=evidence)
    for name in ("a", "b"):
        registry.mark_dirty(Notice(f"/lake/{name}", name, Source.COMMIT_CALLBACK))
        (lease,) = registry.acquire(1, 60)
        run = scheduler.start(lease, TablePolicy(), due)
        if name == "a":
            with registry.transaction() as session:
                report = RunReport(1, "completed", 7_200_000, bytes_out=9)
                report_run(session, lease.table_id, run.run_id, "compaction", report, registry.now_ms())
    first, second = load_decisions(registry, 0)
    assert (first.table_name, first.seconds, first.bytes, first.count) == ("a", 7200, 9, 7)
    assert second.table_name == "b"
    assert second.seconds == pytest.approx(15.25, abs=0.1)
    assert replay([first, second], tables, registry.now_ms() + DAY_MS).waits_s == (0, 7200)
    gateway.end(run.run_id, RunState.SUCCESS, 0)
    assert load_decisions(registry, registry.now_ms() + 1) == [second], "what waits counts, however old"


def test_plot_is_a_document_with_a_line_for_each_replay() -> None:
    found = replay([past(n) for n in range(5)], budgets("{all: {slots: 1}}"), END_MS)
    root = ElementTree.fromstring(to_svg([("today & <now>", found), ("other", found)]))
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2
    assert len(lines[0].attrib["points"].split()) == len(found.backlog)
    assert ElementTree.fromstring(to_svg([])) is not None


@pytest.mark.parametrize("text", ["", "0d", "7", "d", "-1d", "1w", "1.5h", "1000000d", f"{'9' * 5000}h"])
def test_span_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="12h or 7d"):
        parse_span_ms(text, "--since")


def test_budgets_of_the_command_are_laid_over_those_of_the_file() -> None:
    tables = budgets("{all: {slots: 3}, queues: {spark: {core_hours_per_day: 1}}}")
    changed = with_budgets(tables, ["200", "queue:spark=40", "label:gold=2.5"]).budgets
    assert changed.all is not None
    assert (changed.all.slots, changed.all.core_hours_per_day) == (3, 200)
    assert (changed.queues["spark"].core_hours_per_day, changed.labels["gold"].core_hours_per_day) == (40, 2.5)
    for wrong in ("much", "-1", "nan", "store:x=1"):
        with pytest.raises(ConfigError, match="core hours a day"):
            with_budgets(tables, [wrong])


def many(count: int, owners: str = "a", days: int = 7) -> list[PastDecision]:
    rng = random.Random(count)
    decisions = (
        past(
            n,
            rng.randrange(days * DAY_MS),
            rng.uniform(60, 3600),
            delay_ms=rng.randrange(2 * DAY_MS),
            owner=rng.choice(owners),
        )
        for n in range(count)
    )
    return sorted(decisions, key=lambda one: one.due_ms)


@pytest.mark.parametrize("text", ["{all: {slots: 2}}", "{all: {core_hours_per_day: 40}}"])
def test_replay_of_many_decisions_checks_each_a_few_times(text: str) -> None:
    few, more = (replay(many(count), budgets(text), END_MS) for count in (1_000, 4_000))
    assert more.waiting + more.started == 4_000
    assert more.checks < 4.5 * few.checks
    assert more.checks < 5 * 4_000


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), slots=st.integers(1, 3), hours=st.floats(1.0, 10.0))
def test_replay_starts_what_asking_every_waiting_service_at_every_moment_starts(
    seed: int, slots: int, hours: float
) -> None:
    """Two slots or core hours of all, one of an owner: the reference has no queues and leaves nothing out."""
    rng = random.Random(seed)
    decisions = [
        replace(one, seconds=float(rng.randrange(1, 60) * 60), delay_ms=rng.randrange(-HOUR_MS, DAY_MS))
        for one in many(rng.randrange(1, 40), "ab", days=1)
    ]
    tables = budgets(f"{{all: {{slots: {slots + 1}}}, owners: {{a: {{slots: {slots}, core_hours_per_day: {hours}}}}}}}")
    found = replay(decisions, tables, END_MS)
    assert sorted(found.waits_s) == sorted(asked_at_every_moment(decisions, slots, hours * HOUR_MS))


def asked_at_every_moment(decisions: list[PastDecision], slots: int, core_ms: float) -> list[float]:
    left = [one for one in decisions if one.need.core_ms <= round(core_ms)]
    runs: list[tuple[int, PastDecision]] = []
    waits_s = []
    moments = [one.due_ms for one in left]
    while moments:
        now_ms = min(moments)
        moments = [at_ms for at_ms in moments if at_ms > now_ms]
        active = [one for at_ms, one in runs if at_ms + round(one.seconds * 1000) > now_ms]
        spent = sum(one.need.core_ms for at_ms, one in runs if one.owner == "a" and at_ms > now_ms - DAY_MS)
        free = slots + 1 - len(active)
        free_a = slots - sum(one.owner == "a" for one in active)
        hours_a = round(core_ms) - spent
        for one in sorted(left, key=lambda one: (one.due_ms + one.delay_ms, decisions.index(one))):
            if one.due_ms > now_ms:
                continue
            is_a, is_old = one.owner == "a", one.due_ms + one.delay_ms <= now_ms
            short_a = is_a and (free_a < 1 or one.need.core_ms > hours_a)
            may_start = free >= 1 and not short_a
            if may_start or is_old:
                # An old one keeps its place in the budgets that have room, and closes those that have none.
                free = free - 1 if free >= 1 else 0
                if is_a:
                    free_a, hours_a = (0, 0) if short_a else (free_a - 1, hours_a - one.need.core_ms)
            if may_start:
                left.remove(one)
                runs.append((now_ms, one))
                waits_s.append((now_ms - one.due_ms) / 1000)
                moments += [now_ms + round(one.seconds * 1000), now_ms + DAY_MS]
    return waits_s
