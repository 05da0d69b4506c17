"""Each requirement of a table's writers in each of its states: hand-made tables and traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC
from types import MappingProxyType

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import IndexingPolicy
from airflow_lake_provider.hudi.active_writes import WriterSigns
from airflow_lake_provider.hudi.instant import Instant, Layout
from airflow_lake_provider.instant_clock import instant_time_ms, stamps_of
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.conformance import (
    NOTHING_LEARNT,
    Check,
    Conformance,
    Conformity,
    Learnt,
    Registered,
    Requirement,
    Row,
    Span,
    block_unconforming,
    learnt_to_text,
    parse_learnt,
)
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.planner.writer_rules import check_writers
from airflow_lake_provider.shared.actions import Action, State
from tests.unit.planner.views import NOON_MS, commit, completed, log, pending, view

LOCK = "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"
POLICY = TablePolicy(hudi_options={"hoodie.write.lock.provider": LOCK})
LONG_AFTER_MS = NOON_MS + 3_600_000
BEFORE_MS = NOON_MS - 3_600_000
MULTI_WRITER = "hoodie.write.concurrency.mode=optimistic_concurrency_control"


def write(second: int) -> Instant:
    return completed(second)


def service(second: int, action: Action = Action.COMMIT) -> Instant:
    return completed(second, action)


def table(
    *writes: Instant, services: Sequence[Instant] = (), plans: Sequence[Instant] = (), partitions: tuple[str, ...] = ()
) -> TableView:
    commits = [(w, commit(log("f", 10))) for w in writes]
    made = [(s, commit(operation="COMPACT")) for s in services if s.action is Action.COMMIT]
    others = [s for s in services if s.action is not Action.COMMIT]
    return view(*commits, *made, plans=(*plans, *others), metadata_partitions=partitions)


def signs(shown: TableView, *, after_ms: int | None = 100, **known: object) -> WriterSigns:
    """Traces of a table whose writers conform; `after_ms`: when the folders changed after the newest write's end."""
    made_ms = {}
    for instant in shown.timeline.instants:
        action = "" if instant.action is Action.COMMIT else f".{instant.action.value}"
        made_ms[f"{instant.requested_time}.{instant.action.value}.requested"] = ms(instant.requested_time)
        if instant.is_completed:
            made_ms[instant.file_name] = ms(instant.completed_time or "") + 200
        else:
            made_ms[f"{instant.requested_time}{action}.inflight"] = ms(instant.requested_time)
    writes = shown.timeline.completed_writes
    end_ms = made_ms[writes[-1].file_name] if writes else None
    changed_ms = None if end_ms is None or after_ms is None else end_ms + after_ms
    found = WriterSigns(
        heartbeats_changed_ms=changed_ms,
        meta_changed_ms=changed_ms,
        stamps=stamps_of(made_ms.items()),
        made_ms=made_ms,
    )
    return replace(found, **known)  # type: ignore[arg-type]


def ms(instant_time: str) -> int:
    time_ms = instant_time_ms(instant_time, UTC)
    assert time_ms is not None
    return time_ms


def known(*announced: Instant, served: Sequence[Instant] = (), runs: tuple[Span, ...] = ()) -> Registered:
    times = (frozenset(instant.requested_time for instant in some) for some in (announced, served))
    return Registered(BEFORE_MS, *times, runs)


def learn(
    shown: TableView,
    found: WriterSigns | None = None,
    *,
    policy: TablePolicy = POLICY,
    registered: Registered | None = None,
    learnt: Learnt = NOTHING_LEARNT,
    now_ms: int = LONG_AFTER_MS,
) -> Learnt:
    found = found if found is not None else signs(shown)
    after = check_writers(Check(shown, policy, found, registered, now_ms), learnt)
    # What the registry stores is what the next check knows.
    assert parse_learnt(learnt_to_text(after)) == after
    return after


def rows(learnt: Learnt) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {row.requirement.value: (row.state.value, row.settings) for row in learnt.rows}


def row(learnt: Learnt, requirement: Requirement) -> Row:
    return Conformance(learnt.rows).row(requirement)


FIRST = Learnt(checked_ms=BEFORE_MS, since_ms=BEFORE_MS)
"""A check before all commits, so that everything since is judged."""


def test_a_table_whose_writers_conform_has_nothing_broken_and_shows_what_proves_it() -> None:
    commits = [write(second) for second in range(0, 18, 3)]
    learnt = learn(table(*commits), registered=known(*commits), learnt=FIRST)
    states = {requirement: state for requirement, (state, _) in rows(learnt).items()}
    assert states == {
        "heartbeat": "met",
        "lock": "met",
        "services": "met",
        "time_zone": "met",
        "metadata_writes": "unknown",
        "indexes": "met",
        "notices": "met",
        "hudi_version": "met",
        "merge": "met",
    }
    assert Conformance(learnt.rows).broken() == ()
    assert all(row.evidence and row.endangers for row in learnt.rows)


def test_a_table_without_a_commit_has_nothing_broken() -> None:
    assert Conformance(learn(table(), WriterSigns()).rows).broken() == ()


@pytest.mark.parametrize(
    ("found", "state"),
    [
        pytest.param({"after_ms": None}, Conformity.UNKNOWN, id="a-store-whose-folders-have-no-times"),
        pytest.param({"heartbeats_changed_ms": 0}, Conformity.BROKEN, id="no-heartbeat-ever"),
        pytest.param({"heartbeats_changed_ms": NOON_MS - 60_000}, Conformity.BROKEN, id="folder-older-than-the-write"),
        pytest.param({"heartbeats_changed_ms": NOON_MS + 900}, Conformity.BROKEN, id="folder-older-than-its-end"),
        pytest.param({"heartbeats_changed_ms": NOON_MS + 1205}, Conformity.MET, id="folder-changed-at-its-end"),
        pytest.param(
            {"heartbeats_changed_ms": NOON_MS, "heartbeats_ms": {write(0).requested_time: NOON_MS}},
            Conformity.UNKNOWN,
            id="heartbeat-about-to-be-taken-away",
        ),
        pytest.param({"after_ms": 600_000}, Conformity.UNKNOWN, id="another-process-changed-it-since"),
    ],
)
def test_heartbeat_of_a_completed_write(found: dict[str, int | None], state: Conformity) -> None:
    shown = table(write(0))
    learnt = learn(shown, signs(shown, **found))  # type: ignore[arg-type]
    assert row(learnt, Requirement.HEARTBEAT).state is state
    assert row(learnt, Requirement.HEARTBEAT).settings == ((MULTI_WRITER,) if state is Conformity.BROKEN else ())


@pytest.mark.parametrize("has_beat", [True, False])
def test_heartbeat_of_a_write_in_flight_decides_over_older_ones(*, has_beat: bool) -> None:
    writer = pending(9, Action.DELTACOMMIT, State.INFLIGHT)
    shown = table(write(0), plans=[writer])
    beats = MappingProxyType({writer.requested_time: NOON_MS} if has_beat else {})
    found = signs(shown, pending=frozenset({writer.requested_time}), heartbeats_ms=beats, heartbeats_changed_ms=0)
    learnt = learn(shown, found)
    assert row(learnt, Requirement.HEARTBEAT).state is (Conformity.MET if has_beat else Conformity.BROKEN)
    assert writer.requested_time in row(learnt, Requirement.HEARTBEAT).evidence


def test_a_write_that_completed_while_heartbeats_were_listed_proves_nothing() -> None:
    writer = pending(9, Action.DELTACOMMIT, State.INFLIGHT)
    shown = table(write(0), plans=[writer])
    learnt = learn(shown, signs(shown, after_ms=600_000))
    assert row(learnt, Requirement.HEARTBEAT).state is Conformity.UNKNOWN


def test_single_writer_mode_breaks_heartbeat_and_lock_and_both_name_one_setting() -> None:
    shown = table(write(0))
    learnt = learn(shown, signs(shown, heartbeats_changed_ms=0))
    broken = Conformance(learnt.rows).broken()
    assert [row.requirement for row in broken] == [Requirement.HEARTBEAT, Requirement.LOCK]
    assert {setting for row in broken for setting in row.settings} == {MULTI_WRITER}


@pytest.mark.parametrize(
    ("after_ms", "options", "state"),
    [
        pytest.param(100, POLICY.hudi_options, Conformity.MET, id="given-back-at-the-end"),
        pytest.param(-1000, POLICY.hudi_options, Conformity.BROKEN, id="no-lock-at-the-end"),
        pytest.param(600_000, POLICY.hudi_options, Conformity.UNKNOWN, id="taken-since-by-another-process"),
        pytest.param(-1000, {}, Conformity.UNKNOWN, id="no-provider-to-compare-with"),
        pytest.param(
            -1000,
            {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"},
            Conformity.UNKNOWN,
            id="a-provider-that-leaves-no-trace",
        ),
        pytest.param(
            -1000,
            {**POLICY.hudi_options, "hoodie.write.lock.filesystem.path": "/locks"},
            Conformity.UNKNOWN,
            id="a-lock-file-elsewhere",
        ),
    ],
)
def test_lock_of_a_completed_write(after_ms: int, options: dict[str, str], state: Conformity) -> None:
    shown = table(write(0))
    found = replace(signs(shown), meta_changed_ms=signs(shown, after_ms=after_ms).meta_changed_ms)
    learnt = learn(shown, found, policy=TablePolicy(hudi_options=options))
    assert row(learnt, Requirement.LOCK).state is state
    if state is Conformity.BROKEN:
        provider = f"hoodie.write.lock.provider={LOCK}"
        assert row(learnt, Requirement.LOCK).settings == (MULTI_WRITER, provider)
        assert row(learnt, Requirement.HEARTBEAT).state is Conformity.MET


def test_lock_of_layout_1_is_not_visible() -> None:
    shown = table(write(0))
    shown = replace(shown, properties=replace(shown.properties, layout=Layout.V1, version=6))
    learnt = learn(shown, replace(signs(shown), meta_changed_ms=NOON_MS - 60_000))
    assert row(learnt, Requirement.LOCK).state is Conformity.UNKNOWN


def test_a_copied_table_proves_nothing() -> None:
    shown = table(*(write(second) for second in range(0, 18, 3)))
    copied_ms = LONG_AFTER_MS + 400_000
    names = [*signs(shown).made_ms]
    copy = {name: copied_ms + n for n, name in enumerate(names)}
    found = WriterSigns(heartbeats_changed_ms=0, meta_changed_ms=0, stamps=stamps_of(copy.items()), made_ms=copy)
    learnt = learn(shown, found, now_ms=copied_ms + 1000)
    assert Conformance(learnt.rows).broken() == ()
    assert row(learnt, Requirement.HEARTBEAT).state is Conformity.UNKNOWN


def test_a_proof_is_kept_until_a_newer_one_or_until_many_commits_are_newer() -> None:
    shown = table(write(0))
    broken = learn(shown, signs(shown, heartbeats_changed_ms=0))
    later = table(write(0), write(3))
    ambiguous = signs(later, after_ms=600_000)
    assert row(learn(later, ambiguous, learnt=broken), Requirement.HEARTBEAT).state is Conformity.BROKEN
    assert row(learn(later, learnt=broken), Requirement.HEARTBEAT).state is Conformity.MET
    many = table(*(write(second) for second in range(0, 44, 2)))
    old = learn(many, signs(many, after_ms=600_000), learnt=broken)
    assert row(old, Requirement.HEARTBEAT).state is Conformity.UNKNOWN


COMPACTED = [write(0), write(6), write(12)]
COMPACTIONS = [service(3), service(9), service(15)]


def test_services_by_another_process_are_a_setting_from_twice_on() -> None:
    once = learn(table(*COMPACTED, services=COMPACTIONS[-1:]), registered=known(*COMPACTED), learnt=FIRST)
    assert rows(once)["services"] == ("unknown", ("hoodie.compact.inline=false",))
    twice = learn(table(*COMPACTED, services=COMPACTIONS), registered=known(*COMPACTED), learnt=FIRST)
    assert rows(twice)["services"] == ("broken", ("hoodie.compact.inline=false",))
    assert row(twice, Requirement.SERVICES).blocks == (Service.COMPACTION, Service.LOGCOMPACTION)


def test_cleans_by_another_process_break_the_requirement_and_block_nothing() -> None:
    cleans = [service(3, Action.CLEAN), service(9, Action.CLEAN)]
    learnt = learn(table(*COMPACTED, services=cleans), registered=known(*COMPACTED), learnt=FIRST)
    assert rows(learnt)["services"] == ("broken", ("hoodie.clean.automatic=false",))
    assert row(learnt, Requirement.SERVICES).blocks == ()


@pytest.mark.parametrize(
    "registered",
    [
        pytest.param(known(served=COMPACTIONS), id="a-task-reported-them"),
        pytest.param(known(runs=(Span("compaction", NOON_MS, None),)), id="a-run-is-active"),
        pytest.param(known(runs=(Span("compaction", NOON_MS, NOON_MS + 20_000),)), id="a-run-was-active"),
        pytest.param(Registered(NOON_MS + 60_000), id="before-the-table-was-registered"),
    ],
)
def test_services_of_our_own_are_not_taken_for_the_writers(registered: Registered) -> None:
    learnt = learn(table(*COMPACTED, services=COMPACTIONS), registered=registered, learnt=FIRST)
    assert rows(learnt)["services"][0] != "broken"


def test_services_before_the_first_check_have_no_record() -> None:
    learnt = learn(table(*COMPACTED, services=COMPACTIONS), registered=known(*COMPACTED))
    assert rows(learnt)["services"][0] == "unknown"


def test_services_of_a_table_that_is_not_registered_are_all_another_process_s() -> None:
    learnt = learn(table(*COMPACTED, services=COMPACTIONS))
    assert rows(learnt)["services"][0] == "broken"


def test_services_are_met_again_when_commits_follow_without_one() -> None:
    broken = learn(table(*COMPACTED, services=COMPACTIONS), registered=known(*COMPACTED), learnt=FIRST)
    more = [*COMPACTED, write(18), write(20), write(22)]
    after = learn(table(*more, services=COMPACTIONS), registered=known(*more), learnt=broken)
    assert rows(after)["services"][0] == "met"


def test_archiving_by_another_process_shows_where_the_timeline_begins() -> None:
    def report(learnt: Learnt, first: int, runs: tuple[Span, ...] = ()) -> Learnt:
        commits = [write(second) for second in range(first, first + 18, 3)]
        now_ms = LONG_AFTER_MS + first * 1000 * 60
        return learn(table(*commits), registered=known(*commits, runs=runs), learnt=learnt, now_ms=now_ms)

    twice = report(report(report(FIRST, 0), 9), 21)
    assert rows(twice)["services"] == ("broken", ("hoodie.archive.automatic=false",))
    ours = (Span("archive", LONG_AFTER_MS, LONG_AFTER_MS + 60_000_000),)
    assert rows(report(report(report(FIRST, 0), 9, ours), 21, ours))["services"][0] != "broken"


def test_time_zone_of_the_writer_is_named_with_the_zone_to_set() -> None:
    commits = [write(0), write(9), write(18)]
    shown = table(*commits)
    found = signs(shown)
    hours = 5 * 3_600_000
    made_ms = {name: time_ms + hours for name, time_ms in found.made_ms.items()}
    found = replace(found, stamps=stamps_of(made_ms.items()), made_ms=made_ms)
    learnt = learn(shown, found, now_ms=LONG_AFTER_MS + hours)
    assert rows(learnt)["time_zone"] == ("broken", ("spark.driver.extraJavaOptions=-Duser.timezone=UTC",))


@pytest.mark.parametrize(
    ("streamed", "state"),
    [
        pytest.param([True, True, True, True], "met", id="all-stream"),
        pytest.param([False, False, False, False], "met", id="none-streams"),
        pytest.param([False, False, True, True], "met", id="changed-once"),
        pytest.param([True, False, True, False], "broken", id="two-writers-in-turn"),
        pytest.param([], "unknown", id="nothing-shows"),
    ],
)
def test_updates_of_the_metadata_table(streamed: list[bool], state: str) -> None:
    commits = [write(second) for second in range(0, 12, 3)]
    shown = table(*commits, partitions=("files",))
    modes = {one.requested_time: is_streamed for one, is_streamed in zip(commits, streamed, strict=False)}
    learnt = learn(shown, signs(shown, streamed=MappingProxyType(modes)))
    settings = ("hoodie.metadata.streaming.write.enabled=false",) if state == "broken" else ()
    assert rows(learnt)["metadata_writes"] == (state, settings)


def partitions_after(*later: tuple[int, tuple[str, ...]], registered: Registered | None = None) -> Learnt:
    learnt = NOTHING_LEARNT
    for count, partitions in ((1, ("files", "record_index")), *later):
        commits = [write(second * 3) for second in range(count)]
        shown = table(*commits, partitions=partitions)
        now_ms = LONG_AFTER_MS + count * 1000
        learnt = learn(shown, registered=registered or known(*commits), learnt=learnt, now_ms=now_ms)
    return learnt


BOTH = ("files", "record_index")


@pytest.mark.parametrize(
    ("later", "state", "setting"),
    [
        pytest.param([(2, BOTH)], "met", "", id="in-place"),
        pytest.param([(2, ("files",))], "broken", "hoodie.metadata.auto.delete.partitions=false", id="dropped"),
        pytest.param([(2, ())], "broken", "hoodie.metadata.enable=true", id="metadata-table-gone"),
        pytest.param([(1, ("files",))], "met", "", id="gone-without-a-write"),
        pytest.param([(2, ("files",)), (3, BOTH)], "unknown", "", id="back-and-not-tried"),
        pytest.param([(2, ("files",)), (3, BOTH), (4, BOTH)], "met", "", id="back-and-kept"),
        pytest.param(
            [(2, ("files",)), (3, BOTH), (4, ("files",))],
            "broken",
            "hoodie.metadata.auto.delete.partitions=false",
            id="back-and-dropped-again",
        ),
    ],
)
def test_indexes_that_vanish_with_a_write(later: list[tuple[int, tuple[str, ...]]], state: str, setting: str) -> None:
    learnt = partitions_after(*later)
    assert rows(learnt)["indexes"] == (state, (setting,) if setting else ())
    assert row(learnt, Requirement.INDEXES).blocks == ((Service.INDEXING,) if state == "broken" else ())


def test_an_index_that_our_own_run_drops_is_not_taken_for_the_writers() -> None:
    runs = (Span("indexing", LONG_AFTER_MS, None),)
    assert rows(partitions_after((2, ("files",)), registered=known(runs=runs)))["indexes"][0] == "met"


TEN = [write(second) for second in range(0, 30, 3)]


def test_a_commit_that_is_not_in_the_metadata_table_blocks_all_that_reads_it_until_that_is_built_anew() -> None:
    commits = [write(0), write(3)]
    shown = table(*commits, partitions=("files",))
    left_out = MappingProxyType({commits[1].requested_time: NOON_MS + 4200})
    learnt = learn(shown, signs(shown, unlisted=left_out, metadata_built_ms=NOON_MS))
    assert rows(learnt)["indexes"] == ("broken", ("hoodie.metadata.enable=true",))
    assert set(row(learnt, Requirement.INDEXES).blocks) == set(Service) - {
        Service.ARCHIVE,
        Service.SYNC,
        Service.INTEGRITY,
    }
    later = table(*(write(second) for second in range(0, 58, 2)), partitions=("files",))
    corrected = learn(later, signs(later, metadata_built_ms=NOON_MS), learnt=learnt)
    assert rows(corrected)["indexes"][0] == "broken", "what was left out stays so"
    built = learn(later, signs(later, metadata_built_ms=NOON_MS + 60_000), learnt=corrected)
    assert rows(built)["indexes"][0] == "met"


@pytest.mark.parametrize(
    ("announced", "state"),
    [
        pytest.param(TEN, "met", id="all"),
        pytest.param([], "broken", id="none"),
        pytest.param(TEN[:7], "broken", id="none-of-the-last-three"),
        pytest.param(TEN[3:], "met", id="from-the-fourth-on"),
        pytest.param([*TEN[:4], *TEN[6:]], "met", id="two-lost-in-an-outage"),
        pytest.param(TEN[::2], "broken", id="one-of-two-writers"),
    ],
)
def test_notices(announced: list[Instant], state: str) -> None:
    learnt = learn(table(*TEN), registered=known(*announced), learnt=FIRST)
    assert rows(learnt)["notices"] == (state, ("hoodie.write.commit.callback.on=true",) if state == "broken" else ())
    assert f"{len(announced)} of the last 10" in row(learnt, Requirement.NOTICES).evidence
    assert row(learnt, Requirement.NOTICES).blocks == ()


def test_commits_from_before_the_registration_or_of_the_last_minutes_miss_no_notice() -> None:
    shown = table(write(0), write(3))
    young = learn(shown, registered=known(), learnt=FIRST, now_ms=NOON_MS + 60_000)
    old = learn(shown, registered=Registered(NOON_MS + 60_000), learnt=FIRST)
    unregistered = learn(shown)
    assert [rows(learnt)["notices"][0] for learnt in (young, old, unregistered)] == ["unknown"] * 3


@pytest.mark.parametrize(
    ("version", "is_of_1_0", "indexes", "state"),
    [
        pytest.param(9, None, (), "met", id="version-9"),
        pytest.param(8, None, (), "unknown", id="version-8-that-shows-nothing"),
        pytest.param(8, True, (), "met", id="hudi-1.0"),
        pytest.param(8, True, ("record_index",), "broken", id="hudi-1.0-and-an-index-is-wanted"),
        pytest.param(8, False, ("record_index",), "met", id="hudi-1.1"),
    ],
)
def test_version_of_hudi(version: int, is_of_1_0: bool | None, indexes: tuple[str, ...], state: str) -> None:
    shown = table(write(0))
    shown = replace(shown, properties=replace(shown.properties, version=version))
    policy = replace_policy(indexing=IndexingPolicy(indexes=indexes))
    learnt = learn(shown, signs(shown, is_of_1_0=is_of_1_0), policy=policy)
    assert rows(learnt)["hudi_version"][0] == state


def replace_policy(**changes: object) -> TablePolicy:
    return POLICY.model_copy(update=changes)


def test_a_payload_class_of_ones_own_is_in_doubt_and_blocks_nothing() -> None:
    shown = table(write(0))
    raw = MappingProxyType({"hoodie.compaction.payload.class": "com.shop.NewestWins"})
    shown = replace(shown, properties=replace(shown.properties, raw=raw))
    found = row(learn(shown), Requirement.MERGE)
    assert (found.state, found.blocks) == (Conformity.UNKNOWN, ())
    assert "com.shop.NewestWins" in found.evidence


def due(service: Service) -> Decision:
    return Decision(service, Verdict.DUE, "it is time")


def test_a_service_is_blocked_with_the_setting_to_change_and_harmless_ones_are_not() -> None:
    shown = table(write(0))
    report = Conformance(learn(shown, signs(shown, heartbeats_changed_ms=0)).rows)
    decisions = block_unconforming([due(service) for service in Service], report, POLICY)
    blocked = {decision.service for decision in decisions if decision.verdict is Verdict.BLOCKED}
    assert blocked == set(Service) - {Service.ARCHIVE, Service.SYNC, Service.INTEGRITY}
    assert all(MULTI_WRITER in decision.reason for decision in decisions if decision.service in blocked)
    idle = Decision(Service.CLEAN, Verdict.NOT_DUE, "nothing to clean")
    assert block_unconforming([idle], report, POLICY) == (idle,)


def test_what_is_unknown_blocks_nothing() -> None:
    shown = table(write(0))
    report = Conformance(learn(shown, WriterSigns()).rows)
    assert {row.state for row in report.rows} >= {Conformity.UNKNOWN}
    decisions = [due(service) for service in Service]
    assert block_unconforming(decisions, report, POLICY) == tuple(decisions)


def test_conformance_report_only_shows() -> None:
    shown = table(write(0))
    report = Conformance(learn(shown, signs(shown, heartbeats_changed_ms=0)).rows)
    decisions = [due(Service.COMPACTION)]
    assert block_unconforming(decisions, report, replace_policy(conformance="report")) == tuple(decisions)


@pytest.mark.parametrize("text", [None, "", "nonsense", "[]", '{"rows": 3}', '{"from_another_release": 1}'])
def test_a_record_that_is_not_understood_counts_as_none(text: str | None) -> None:
    assert parse_learnt(text) == NOTHING_LEARNT
