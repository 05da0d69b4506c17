"""The same events give the same decisions, whatever zone the writers have and whatever zone this process has.

The instants of a table with `hoodie.table.timeline.timezone=LOCAL` are named by the writers' clock, which `spark_conf`
names for the jobs. Only where it names none is it this process's.
"""

from __future__ import annotations

import ast
import json
import time
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import (
    CleanPolicy,
    CompactionPolicy,
    SavepointPolicy,
)
from airflow_lake_provider.conflict.activity import ConflictTable
from airflow_lake_provider.conflict.admission import expect_write
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hudi.commit_metadata import CommitMetadata, WriteStat
from airflow_lake_provider.hudi.instant import Instant, Layout
from airflow_lake_provider.hudi.properties import ProcessZone, build_table_properties, zone_of_jobs
from airflow_lake_provider.hudi.timeline import Timeline, build_timeline
from airflow_lake_provider.instant_clock import format_instant_time, instant_time_ms
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.supervision.writers_and_sinks import load_sink_state
from airflow_lake_provider.planner.decide import decide
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.shared.hudi_settings import LOCK_PROVIDER
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.snapshot import Depth, refresh
from airflow_lake_provider.ui.table_facts import instants_of

ZONES = ("UTC", "America/New_York", "Asia/Tokyo")
NOW_MS = int(datetime(2026, 11, 26, 12, tzinfo=UTC).timestamp() * 1000)
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
LOCK = {LOCK_PROVIDER: "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"}


@pytest.fixture(params=ZONES)
def process_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


class Events:
    """A table by the moments of its events; names are printed by the clock of its writers."""

    def __init__(self, zone: str, version: int) -> None:
        self.zone, self.version = ZoneInfo(zone), version
        self.modified_ms: dict[str, int] = {}
        self.instants: list[Instant] = []
        self.commits: dict[str, CommitMetadata] = {}

    def print(self, time_ms: int) -> str:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)
        moment = moment.astimezone(self.zone)
        return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"

    def completed(self, time_ms: int, action: Action, metadata: CommitMetadata | None = None, took_ms: int = 0) -> str:
        requested, done = self.print(time_ms), self.print(time_ms + took_ms)
        begun = {Action.COMMIT: "compaction"}.get(action, action.value)
        self.modified_ms[f"{requested}.{begun}.requested"] = time_ms
        self.modified_ms[f"{requested}.{action.value}"] = time_ms + took_ms
        self.instants.append(Instant(requested, action, State.COMPLETED, done, f"{requested}_{done}.{action.value}"))
        if metadata is not None:
            self.commits[requested] = metadata
        return requested

    def pending(self, time_ms: int, action: Action, state: State) -> str:
        requested = self.print(time_ms)
        name = f"{requested}.{action.value}.{state.value.lower()}"
        self.modified_ms[name] = time_ms
        self.modified_ms[f"{requested}.{action.value}.requested"] = time_ms
        self.instants.append(Instant(requested, action, state, None, name))
        return requested

    def delta(self, time_ms: int, took_ms: int = 20_000) -> str:
        requested = self.print(time_ms)
        stat = WriteStat("p=1", "g1", f"p=1/.g1_{requested}.log.1_0-0-0", 100, 100)
        return self.completed(time_ms, Action.DELTACOMMIT, CommitMetadata("UPSERT", (stat,)), took_ms)

    def facts(self, beats: dict[str, int] | None = None) -> TableFacts:
        properties = build_table_properties(
            {
                "hoodie.table.name": "t",
                "hoodie.table.type": "MERGE_ON_READ",
                "hoodie.table.version": str(self.version),
                "hoodie.table.timeline.timezone": "LOCAL",
                "hoodie.table.partition.fields": "p",
            },
            "/lake/t",
        )
        timeline = Timeline(tuple(sorted(self.instants, key=lambda instant: instant.sort_key)))
        if properties.layout is Layout.V1:
            timeline = build_timeline(Layout.V1, self.modified_ms, self.modified_ms, "LOCAL")
        view = TableView("/lake/t", properties, timeline, MappingProxyType(self.commits), "v", (), beats)
        return TableFacts(view)


def policy(zone: str, **rules: object) -> TablePolicy:
    conf = {"spark.driver.extraJavaOptions": f"-Duser.timezone={zone}"}
    return TablePolicy(hudi_options=LOCK, spark_conf=conf, **rules)  # type: ignore[arg-type]


def find(facts: TableFacts, of: TablePolicy, service: Service) -> Decision:
    return next(found for found in decide(facts, of, NOW_MS) if found.service is service)


def answers(decision: Decision) -> tuple[Verdict, int | None]:
    return decision.verdict, None if decision.evaluate_again_ms is None else decision.evaluate_again_ms - NOW_MS


def four_deltas(zone: str, version: int) -> Events:
    table = Events(zone, version)
    for minutes in (40, 32, 24, 16):
        table.delta(NOW_MS - minutes * MINUTE_MS)
    return table


# --- Each row of decisions that rest on an age


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("zone", ZONES)
def test_plan_of_another_process_waits_for_its_owner(process_zone: str, zone: str, version: int) -> None:
    table = four_deltas(zone, version)
    action = Action.REPLACECOMMIT if version == 6 else Action.CLUSTERING
    table.pending(NOW_MS - 5000, action, State.REQUESTED)
    facts = table.facts({})
    if version == 6:  # only the plan shows that it is a clustering: the view reads it
        plans = (i if i.action is not action else Instant(i.requested_time, Action.CLUSTERING, i.state, None, "x")
                 for i in facts.timeline.instants)  # fmt: skip
        view = facts.view
        facts = TableFacts(
            TableView(view.base_path, view.properties, Timeline(tuple(plans)), view.commits, "v", (), {})
        )
    found = find(facts, policy(zone), Service.CLUSTERING)
    assert answers(found) == (Verdict.NOT_DUE, 595_000), found.reason


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("zone", ZONES)
def test_rule_of_age(process_zone: str, zone: str, version: int) -> None:
    rules = CompactionPolicy(max_age_s=3600, delta_commits=None, log_to_base_ratio=None)
    found = find(four_deltas(zone, version).facts(), policy(zone, compaction=rules), Service.COMPACTION)
    assert answers(found) == (Verdict.NOT_DUE, 20 * MINUTE_MS + 20_000), found.reason
    due = find(
        four_deltas(zone, version).facts(),
        policy(zone, compaction=rules.replace(max_age_s=2300)),
        Service.COMPACTION,
    )
    assert due.verdict is Verdict.DUE, due.reason


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("zone", ZONES)
def test_write_that_has_just_begun_blocks_nothing(process_zone: str, zone: str, version: int) -> None:
    table = four_deltas(zone, version)
    table.pending(NOW_MS - 3000, Action.DELTACOMMIT, State.INFLIGHT)
    found = find(table.facts({}), policy(zone, compaction=CompactionPolicy(delta_commits=2)), Service.COMPACTION)
    assert found.verdict is Verdict.DUE, found.reason


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("zone", ZONES)
def test_dead_write_of_three_hours_is_rolled_back(process_zone: str, zone: str, version: int) -> None:
    table = four_deltas(zone, version)
    dead = table.pending(NOW_MS - 3 * HOUR_MS, Action.DELTACOMMIT, State.INFLIGHT)
    found = find(table.facts({dead: NOW_MS - 3 * HOUR_MS}), policy(zone), Service.ROLLBACK)
    assert found.verdict is Verdict.DUE, found.reason


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("zone", ZONES)
def test_hours_that_a_clean_retains(process_zone: str, zone: str, version: int) -> None:
    table = Events(zone, version)
    for hours in range(20, 0, -1):
        table.delta(NOW_MS - hours * HOUR_MS)
    of = policy(zone, clean=CleanPolicy(policy="hours", retained_hours=6))
    assert table.facts().retained_by_policy(of, NOW_MS) == 6 + 3


@pytest.mark.parametrize("zone", ZONES)
def test_savepoint_expires_by_its_age(process_zone: str, zone: str) -> None:
    def verdict_at(hours: int) -> str:
        table = four_deltas(zone, 9)
        newest = table.facts().writes[-1].requested_time
        for requested in (table.print(NOW_MS - hours * HOUR_MS), newest):
            name = f"{requested}_{requested}.savepoint"
            table.instants.append(Instant(requested, Action.SAVEPOINT, State.COMPLETED, requested, name))
        rules = SavepointPolicy(every_s=86_400, keep=7, expire_after_s=10 * 3600)
        return find(table.facts(), policy(zone, savepoint=rules), Service.SAVEPOINT).verdict

    assert (verdict_at(9), verdict_at(11)) == (Verdict.NOT_DUE, Verdict.DUE)


@pytest.mark.parametrize("zone", ZONES)
def test_page_shows_when_an_instant_was(process_zone: str, zone: str) -> None:
    facts = four_deltas(zone, 9).facts()
    shown = instants_of(facts.view, facts.zone(policy(zone)))
    assert [(NOW_MS - one.requested_ms) // MINUTE_MS for one in shown] == [40, 32, 24, 16]


# --- Layout 1: completed times are those of files


@pytest.mark.parametrize("after", [0, 1, 6, 10])
@pytest.mark.parametrize("zone", ZONES)
def test_layout_1_counts_writes_after_a_service_by_the_writers_clock(process_zone: str, zone: str, after: int) -> None:
    """Twelve delta commits, a compaction and a clean; then so many more. Only these count."""
    table, time_ms = Events(zone, 6), NOW_MS - 4 * HOUR_MS
    for _ in range(12):
        table.delta(time_ms)
        time_ms += 10 * MINUTE_MS
    base = WriteStat("p=1", "g1", "p=1/g1_0-0-0_x.parquet", 1000, 1000)
    table.completed(time_ms, Action.COMMIT, CommitMetadata("COMPACT", (base,)), 20_000)
    table.completed(time_ms + 2 * MINUTE_MS, Action.CLEAN, None, 20_000)
    time_ms += 4 * MINUTE_MS
    for _ in range(after):
        table.delta(time_ms)
        time_ms += 10 * MINUTE_MS
    facts, rules = table.facts(), policy(zone)
    compaction, clean = find(facts, rules, Service.COMPACTION), find(facts, rules, Service.CLEAN)
    assert compaction.evidence["delta_commits"] == after
    assert clean.evidence["writes_since_clean"] == after
    assert compaction.verdict is (Verdict.DUE if after >= 5 else Verdict.NOT_DUE)
    assert clean.verdict is Verdict.NOT_DUE, clean.reason  # nothing but log files came since


@pytest.mark.parametrize("zone", ZONES)
def test_layout_1_completes_in_the_zone_of_its_names_though_some_files_were_copied(
    process_zone: str, zone: str
) -> None:
    table = four_deltas(zone, 6)
    first = table.print(NOW_MS - 40 * MINUTE_MS)
    table.modified_ms[f"{first}.deltacommit.requested"] = NOW_MS - 7 * MINUTE_MS  # younger than its name
    timeline = table.facts().timeline
    completed = [NOW_MS - minutes * MINUTE_MS + 20_000 for minutes in (40, 32, 24, 16)]
    assert [i.completed_time for i in timeline.completed_writes] == [table.print(time_ms) for time_ms in completed]


def test_copied_table_of_layout_1_has_the_zone_of_the_process(process_zone: str) -> None:
    table = four_deltas("Asia/Tokyo", 6)
    table.modified_ms = dict.fromkeys(table.modified_ms, NOW_MS + 40 * HOUR_MS)
    copied = datetime.fromtimestamp(NOW_MS // 1000, ZoneInfo(process_zone)) + timedelta(hours=40)
    assert {i.completed_time for i in table.facts().timeline.completed_writes} == {f"{copied:%Y%m%d%H%M%S}000"}


# --- Sinks, and the next write that admission expects


def write_table(path: Path, zone: str, now_ms: int) -> str:
    timeline = path / ".hoodie" / "timeline"
    timeline.mkdir(parents=True)
    (path / ".hoodie" / "hoodie.properties").write_text(
        "hoodie.table.name=t\nhoodie.table.type=MERGE_ON_READ\nhoodie.table.version=9\n"
        "hoodie.timeline.layout.version=2\nhoodie.table.timeline.timezone=LOCAL\n"
        f"hoodie.table.checksum={zlib.crc32(b'.t')}\n"
    )
    table, first = Events(zone, 9), ""
    for minutes in range(60, 0, -10):
        begun_ms = now_ms - minutes * MINUTE_MS
        requested = table.print(begun_ms)
        first = first or requested
        stat = {"fileId": "a", "path": f"p/.a_{requested}.log.1_0-1-0", "totalWriteBytes": 100, "fileSizeInBytes": 100}
        body = {"operationType": "UPSERT", "partitionToWriteStats": {"p": [stat]}}
        (timeline / f"{requested}_{table.print(begun_ms + 5000)}.deltacommit").write_text(json.dumps(body))
    return first


@pytest.mark.parametrize("zone", ZONES)
def test_sink_is_as_far_behind_as_it_is(process_zone: str, zone: str, tmp_path: Path) -> None:
    first = write_table(tmp_path / "t", zone, NOW_MS)
    conf = policy(zone).spark_conf
    state = load_sink_state(open_storage(str(tmp_path / "t")), "", first, NOW_MS / 1000, conf)
    assert (state.hold_age_s, state.lag_s) == (3600, 3595)


@pytest.mark.parametrize("zone", ZONES)
def test_next_write_is_expected(process_zone: str, zone: str, tmp_path: Path) -> None:
    write_table(tmp_path / "t", zone, NOW_MS)
    storage, conf = open_storage(str(tmp_path / "t")), policy(zone).spark_conf
    snapshot = refresh(storage, None, Depth.LIST, NOW_MS).snapshot
    stat = WriteStat("p", "a", "p/.a_1.log.1_0-1-0", 100, 100)
    commits = {i.requested_time: CommitMetadata("UPSERT", (stat,)) for i in snapshot.timeline.completed_writes}
    opened = ConflictTable(storage, lambda: snapshot, spark_conf=conf)
    expected = expect_write(snapshot, commits, NOW_MS, opened.find_zone(snapshot))
    assert expected is not None
    assert expected.due_ms - NOW_MS == 5000


# --- The zone itself


@given(st.integers(1_500_000_000, 1_900_000_000))
def test_zone_of_the_process_is_that_of_its_name(seconds: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        there = datetime.fromtimestamp(seconds, ZoneInfo("America/New_York"))
        here = datetime.fromtimestamp(seconds, ProcessZone())
        assert (here.replace(tzinfo=None), here.fold) == (there.replace(tzinfo=None), there.fold)
        assert (here.utcoffset(), here.timestamp()) == (there.utcoffset(), seconds)
    time.tzset()


@pytest.mark.parametrize(
    ("name", "hours"), [("GMT+05:30", 5.5), ("GMT-8", -8), ("GMT+1130", 11.5), ("Etc/GMT+5", -5), ("UTC", 0)]
)
def test_names_of_zones_that_java_knows(name: str, hours: float) -> None:
    zone = zone_of_jobs("LOCAL", policy(name).spark_conf)
    assert zone.offset_ms(NOW_MS) == hours * HOUR_MS
    assert instant_time_ms(format_instant_time(NOW_MS, zone.zone), zone.zone) == NOW_MS


@pytest.mark.parametrize("name", ["JST", "Mars/Base", "GMT+25", "UTC+5"])
def test_name_that_python_does_not_know_is_refused(name: str) -> None:
    of = policy(name)
    assert f"time zone to '{name}'" in (of.find_problem() or "")
    with pytest.raises(ConfigError, match="name it like America/New_York"):
        zone_of_jobs("LOCAL", of.spark_conf)
    assert zone_of_jobs("UTC", of.spark_conf).name == "UTC"


_OWN_ZONE = {
    # One place asks for the process's zone, and one prints for the person at a terminal.
    ("hudi/properties.py", "ProcessZone"),
    ("cli/command.py", "_local"),
}


def test_no_code_uses_the_zone_of_the_process_by_itself() -> None:
    """`ruff` (DTZ) refuses naive times; these calls take the process's zone without one."""
    root = Path(__file__).parents[3]
    found = set()
    for path in [*(root / "airflow_lake_provider").rglob("*.py"), *(root / "spark_jobs").rglob("*.py")]:
        text = path.read_text()
        if not any(name in text for name in _SUSPECT):
            continue
        for node in ast.parse(text).body:
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and _takes_own_zone(call):
                    name = getattr(node, "name", "")
                    found.add((str(path.relative_to(root)).removeprefix("airflow_lake_provider/"), name))
    assert found == _OWN_ZONE


_ALWAYS = ("localtime", "mktime", "tzlocal", "ctime", "today", "utcnow")
_SUSPECT = (*_ALWAYS, "astimezone", "fromtimestamp")


def _takes_own_zone(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    arguments = len(call.args) + len(call.keywords)
    if name in _ALWAYS:
        return True
    return (name == "astimezone" and not arguments) or (name == "fromtimestamp" and arguments < 2)
