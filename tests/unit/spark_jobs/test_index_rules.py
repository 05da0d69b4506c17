"""What to do with an index plan, how its build may begin, and which writes an index must mention."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_lake_provider.indexing.index_spec import IndexSpec, parse_indexes
from lake_jobs.hudi.settings import heartbeat_expires_s
from lake_jobs.indexing.outcome import IndexRunResult
from lake_jobs.indexing.rules import (
    Begin,
    BuilderTraces,
    BuildState,
    IndexPlan,
    MetadataWriteMode,
    Step,
    Upkeep,
    WriteChange,
    WriterInFlight,
    decide_step,
    decide_writer_barrier,
    find_in_the_way,
    find_missed,
    find_resting,
    find_rivals,
    find_shadowing,
    find_unaware_writers,
    find_unused_instant,
    is_builder_alive,
    must_mention,
)
from lake_jobs.indexing.settings import (
    IndexRequestError,
    build_settings,
    drop_mark,
    hudi_settings_of,
    hudi_type_of,
    index_options,
    upkeep_of,
)

INDEX = "record_index"
SECONDARY = "secondary_index_city"
EVERY_KIND = ["files", "column_stats", "partition_stats", "bloom_filters", "record_index", "secondary_index:city"]
EVERY_KIND += ["expression_index:by_day:from_unixtime(ts)"]


@pytest.mark.parametrize(
    ("inflight_plan", "complete", "inflight", "built", "lives", "step"),
    [
        pytest.param(False, "", "", BuildState.ABSENT, False, Step.RUN, id="requested"),
        pytest.param(False, INDEX, "", BuildState.ABSENT, False, Step.REDUNDANT, id="index-is-there"),
        pytest.param(True, INDEX, "", BuildState.ABSENT, False, Step.REDUNDANT, id="died-and-a-writer-built-it"),
        pytest.param(True, "", "", BuildState.ABSENT, True, Step.BUSY, id="builder-lives"),
        pytest.param(True, INDEX, "", BuildState.COMPLETED, True, Step.BUSY, id="builder-checks"),
        pytest.param(True, INDEX, "", BuildState.COMPLETED, False, Step.FINISH, id="died-in-its-check"),
        pytest.param(True, "", "", BuildState.ABSENT, False, Step.RUN_AGAIN, id="died-before-it-began"),
        pytest.param(True, "", "", BuildState.PENDING, False, Step.RUN_AGAIN, id="died-before-it-was-announced"),
        pytest.param(True, "", "", BuildState.COMPLETED, False, Step.RUN_AGAIN, id="died-before-it-was-listed"),
        pytest.param(True, "", INDEX, BuildState.ABSENT, False, Step.RUN_AGAIN, id="build-was-rolled-back"),
        pytest.param(True, "", INDEX, BuildState.PENDING, False, Step.RUN_AGAIN, id="died-half-way"),
        pytest.param(True, "", INDEX, BuildState.COMPLETED, False, Step.RUN_AGAIN, id="died-before-it-was-complete"),
        pytest.param(False, "", INDEX, BuildState.PENDING, False, Step.RUN_AGAIN, id="cleaning-up-was-cut-short"),
        pytest.param(False, "", INDEX, BuildState.ABSENT, True, Step.BUSY, id="another-plan-of-it-is-being-built"),
        pytest.param(False, INDEX, "", BuildState.ABSENT, True, Step.BUSY, id="another-plan-of-it-is-being-checked"),
    ],
)
def test_step(inflight_plan: bool, complete: str, inflight: str, built: BuildState, lives: bool, step: Step) -> None:
    plan = IndexPlan("20261121100000000", INDEX, "20261121090000000", is_inflight=inflight_plan)
    assert decide_step(plan, {"files", complete}, {inflight}, built, is_build_running=lives) is step


def test_plan_has_the_inflight_ones_of_its_index_for_rivals() -> None:
    ours = IndexPlan("20261121100000000", INDEX, "", is_inflight=False)
    theirs = IndexPlan("20261121090000000", INDEX, "", is_inflight=True)
    others = [
        IndexPlan("20261121080000000", INDEX, "", is_inflight=False),
        IndexPlan("20261121070000000", "column_stats", "", is_inflight=True),
    ]
    assert find_rivals(ours, [*others, theirs, ours]) == (theirs,)
    assert find_rivals(theirs, [theirs]) == (theirs,)


@pytest.mark.parametrize(
    ("beat", "metadata_beat", "touched", "lives"),
    [
        pytest.param(5, None, 7200, True, id="ours-beats"),
        pytest.param(121, 5, 5, False, id="ours-ended-and-its-other-traces-are-young"),
        pytest.param(None, 5, 7200, True, id="hudis-beats-on-the-metadata-table"),
        pytest.param(None, 600, 300, True, id="hudis-has-just-written-a-file"),
        pytest.param(None, None, 300, True, id="hudis-has-just-begun"),
        pytest.param(None, 600, 1201, False, id="hudis-is-dead"),
        pytest.param(None, None, None, False, id="no-trace"),
    ],
)
def test_builder_is_known_by_its_traces(
    beat: float | None, metadata_beat: float | None, touched: float | None, lives: bool
) -> None:
    assert is_builder_alive(BuilderTraces(beat, metadata_beat, touched), 120.0) is lives


def test_heartbeats_expire_by_the_tables_settings() -> None:
    slow = {"hoodie.client.heartbeat.interval_in_ms": "300000", "hoodie.client.heartbeat.tolerable.misses": "3"}
    assert heartbeat_expires_s({}) == 120.0
    assert heartbeat_expires_s(slow) == 900.0
    beats = WriterInFlight("20261121100000000", "deltacommit", 800, 600, False, heartbeat_expires_s(slow))
    assert (beats.is_live, replace(beats, expires_s=120.0).is_live) == (True, False)
    assert is_builder_alive(BuilderTraces(600, None, None), heartbeat_expires_s(slow))


def writer(*, beat_age_s: float | None = 5, age_s: float = 30, streaming: bool = False) -> WriterInFlight:
    return WriterInFlight("20261121100000000", "deltacommit", age_s, beat_age_s, streaming)


@pytest.mark.parametrize(
    ("writers", "mode", "upkeep", "begin"),
    [
        pytest.param(
            [], MetadataWriteMode.AT_COMMIT, Upkeep.BY_WRITERS, Begin.CONCURRENTLY, id="nobody-and-writers-take-part"
        ),
        pytest.param(
            [writer()],
            MetadataWriteMode.AT_COMMIT,
            Upkeep.BY_WRITERS,
            Begin.CONCURRENTLY,
            id="a-writer-that-takes-part",
        ),
        pytest.param([], MetadataWriteMode.STREAMING, Upkeep.NONE, Begin.ALONE, id="what-is-committed-cannot-be-added"),
        pytest.param(
            [],
            MetadataWriteMode.AT_COMMIT,
            Upkeep.BY_BUILDER,
            Begin.CATCH_UP,
            id="writers-update-it-only-when-complete",
        ),
        pytest.param([], MetadataWriteMode.STREAMING, Upkeep.BY_BUILDER, Begin.CATCH_UP, id="however-they-write"),
        pytest.param(
            [writer()], MetadataWriteMode.AT_COMMIT, Upkeep.BY_BUILDER, Begin.ALONE, id="what-may-be-archived-unseen"
        ),
        pytest.param(
            [writer()], MetadataWriteMode.STREAMING, Upkeep.BY_BUILDER, Begin.WAIT, id="may-stream-past-the-index"
        ),
        pytest.param(
            [writer(beat_age_s=600)], MetadataWriteMode.AT_COMMIT, Upkeep.BY_BUILDER, Begin.CATCH_UP, id="died-long-ago"
        ),
        pytest.param(
            [writer(streaming=True)], MetadataWriteMode.AT_COMMIT, Upkeep.BY_WRITERS, Begin.WAIT, id="one-streams"
        ),
        pytest.param([writer()], MetadataWriteMode.STREAMING, Upkeep.BY_WRITERS, Begin.WAIT, id="one-may-stream"),
        pytest.param([writer()], MetadataWriteMode.UNKNOWN, Upkeep.BY_WRITERS, Begin.WAIT, id="nobody-knows"),
        pytest.param(
            [], MetadataWriteMode.STREAMING, Upkeep.BY_WRITERS, Begin.CATCH_UP, id="quiet-moment-of-streaming-writers"
        ),
        pytest.param(
            [], MetadataWriteMode.UNKNOWN, Upkeep.BY_WRITERS, Begin.CATCH_UP, id="quiet-moment-of-a-young-table"
        ),
        pytest.param(
            [writer(beat_age_s=600)],
            MetadataWriteMode.STREAMING,
            Upkeep.BY_WRITERS,
            Begin.CATCH_UP,
            id="the-dead-do-not-count",
        ),
        pytest.param(
            [writer(beat_age_s=None)],
            MetadataWriteMode.AT_COMMIT,
            Upkeep.BY_WRITERS,
            Begin.WAIT,
            id="takes-no-part-in-locking",
        ),
        pytest.param(
            [writer(beat_age_s=None, age_s=86_400)],
            MetadataWriteMode.AT_COMMIT,
            Upkeep.BY_WRITERS,
            Begin.WAIT,
            id="may-take-a-day",
        ),
    ],
)
def test_fence(writers: list[WriterInFlight], mode: MetadataWriteMode, upkeep: Upkeep, begin: Begin) -> None:
    verdict = decide_writer_barrier(writers, mode, upkeep=upkeep, no_writer=False)
    assert verdict.begin is begin
    if begin is Begin.WAIT:
        assert writers[0].instant in verdict.reason
        assert "hoodie." in verdict.reason


@pytest.mark.parametrize(("age_s", "begin"), [(30, Begin.WAIT), (3600, Begin.CATCH_UP)])
def test_fence_believes_that_no_writer_runs_unless_one_is_seen_to(age_s: float, begin: Begin) -> None:
    left = writer(beat_age_s=None, age_s=age_s, streaming=True)
    verdict = decide_writer_barrier([left], MetadataWriteMode.STREAMING, upkeep=Upkeep.BY_WRITERS, no_writer=True)
    assert verdict.begin is begin, verdict.reason


@pytest.mark.parametrize(
    ("plan", "one", "begin"),
    [
        pytest.param("20261121110000000", writer(), Begin.WAIT, id="older"),
        pytest.param("20261121000000000", writer(), Begin.CONCURRENTLY, id="younger"),
        pytest.param("20261121110000000", writer(beat_age_s=600), Begin.CONCURRENTLY, id="dead"),
        pytest.param("", writer(), Begin.CONCURRENTLY, id="shall-not-wait"),
    ],
)
def test_write_that_is_older_than_the_plan_is_waited_for(plan: str, one: WriterInFlight, begin: Begin) -> None:
    verdict = decide_writer_barrier(
        [one], MetadataWriteMode.AT_COMMIT, upkeep=Upkeep.BY_WRITERS, no_writer=False, older_than=plan
    )
    assert verdict.begin is begin
    if begin is Begin.WAIT:
        assert f"{one} is older than the plan" in verdict.reason


@pytest.mark.parametrize(
    ("one", "mode", "is_blind"),
    [
        pytest.param(writer(), MetadataWriteMode.AT_COMMIT, False, id="reads-the-properties-as-part-of-its-commit"),
        pytest.param(writer(streaming=True), MetadataWriteMode.AT_COMMIT, True, id="streams"),
        pytest.param(writer(), MetadataWriteMode.STREAMING, True, id="may-stream"),
        pytest.param(writer(), MetadataWriteMode.UNKNOWN, True, id="nobody-knows"),
        pytest.param(writer(beat_age_s=None), MetadataWriteMode.AT_COMMIT, True, id="takes-no-part-in-locking"),
        pytest.param(writer(beat_age_s=None, age_s=86_400), MetadataWriteMode.STREAMING, True, id="may-take-a-day"),
        pytest.param(writer(beat_age_s=600, streaming=True), MetadataWriteMode.STREAMING, False, id="dead"),
    ],
)
def test_writer_that_may_have_begun_without_knowing_of_an_index(
    one: WriterInFlight, mode: MetadataWriteMode, is_blind: bool
) -> None:
    assert find_unaware_writers([one], mode) == ([one] if is_blind else [])


@pytest.mark.parametrize(
    ("one", "is_unaware", "no_writer", "is_in_the_way"),
    [
        pytest.param(writer(), True, False, True, id="may-not-know-of-it"),
        pytest.param(writer(), False, False, False, id="knows-of-it"),
        pytest.param(writer(), False, True, True, id="was-said-not-to-run"),
        pytest.param(writer(beat_age_s=600), True, True, False, id="died"),
        pytest.param(writer(beat_age_s=None), False, False, True, id="takes-no-part-in-locking-and-began-just-now"),
        pytest.param(writer(beat_age_s=None, age_s=86_400), False, False, True, id="may-take-a-day"),
        pytest.param(writer(beat_age_s=None, age_s=3600), True, True, False, id="was-said-to-be-dead"),
    ],
)
def test_writer_that_keeps_a_built_index_from_being_called_complete(
    one: WriterInFlight, is_unaware: bool, no_writer: bool, is_in_the_way: bool
) -> None:
    unaware = {one.instant} if is_unaware else set()
    assert find_in_the_way([one], unaware, no_writer=no_writer) == ([one] if is_in_the_way else [])


def test_writer_that_was_said_not_to_run_stops_the_build() -> None:
    verdict = decide_writer_barrier([writer()], MetadataWriteMode.AT_COMMIT, upkeep=Upkeep.BY_WRITERS, no_writer=True)
    assert verdict.begin is Begin.WAIT
    assert "says that no writer runs" in verdict.reason


@pytest.mark.parametrize(
    ("partition", "change", "must"),
    [
        (INDEX, WriteChange("UPSERT", 1, 0, 0, 0), True),
        (INDEX, WriteChange("UPSERT", 0, 9, 0, 0), False),
        (INDEX, WriteChange("DELETE", 0, 0, 1, 0), True),
        (INDEX, WriteChange("COMPACT", 9, 0, 0, 4), False),
        ("secondary_index_city", WriteChange("UPSERT", 1, 0, 0, 0), True),
        ("bloom_filters", WriteChange("UPSERT", 0, 9, 0, 0), False),
        ("bloom_filters", WriteChange("COMPACT", 0, 9, 0, 4), True),
        ("column_stats", WriteChange("UPSERT", 0, 9, 0, 0), True),
        ("column_stats", WriteChange("DELETE", 0, 0, 9, 0), False),
        ("partition_stats", WriteChange("COMPACT", 0, 9, 0, 4), False),
        ("expr_index_by_day", WriteChange("INSERT", 1, 0, 0, 1), True),
        ("record_index", WriteChange("LOG_COMPACT", 0, 100, 3, 0), False),
        ("secondary_index_city", WriteChange("LOG_COMPACT", 0, 100, 3, 0), False),
        ("column_stats", WriteChange("LOG_COMPACT", 0, 100, 3, 0), False),
        ("partition_stats", WriteChange("LOG_COMPACT", 0, 100, 3, 0), False),
        ("record_index", WriteChange("CLUSTER", 100, 0, 0, 1), True),
        ("secondary_index_city", WriteChange("CLUSTER", 100, 0, 0, 1), False),
    ],
)
def test_write_that_an_index_must_mention(partition: str, change: WriteChange, must: bool) -> None:
    assert must_mention(partition, change) is must


def test_plan_of_several_indexes_is_built_in_an_order_in_which_each_has_what_it_needs() -> None:
    others = ("partition_stats", INDEX, "column_stats")
    plan = IndexPlan("20261121100000000", "secondary_index_city", "20261121090000000", is_inflight=True, others=others)
    assert plan.partitions == (INDEX, "column_stats", "secondary_index_city", "partition_stats")
    assert [part.partitions for part in plan.parts()] == [(name,) for name in plan.partitions]
    assert {(part.instant, part.up_to, part.is_inflight) for part in plan.parts()} == {
        ("20261121100000000", "20261121090000000", True)
    }


def test_builder_of_a_plan_of_several_indexes_is_a_rival_in_each_of_them() -> None:
    ours = IndexPlan("20261121100000000", INDEX, "", is_inflight=False)
    theirs = IndexPlan("20261121090000000", "column_stats", "", is_inflight=True, others=(INDEX,))
    assert find_rivals(ours, (ours, theirs)) == (theirs,)


def test_index_on_which_others_rest_is_known_with_them() -> None:
    there = {"files", "column_stats", "partition_stats", "record_index", "secondary_index_city", "bloom_filters"}
    resting = {name: find_resting(name, there) for name in there}
    assert resting == {
        "files": there - {"files"},
        "column_stats": {"partition_stats"},
        "record_index": {"secondary_index_city"},
        **dict.fromkeys(("partition_stats", "secondary_index_city", "bloom_filters"), frozenset()),
    }


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param(set(), "20261121100059999", id="next-millisecond"),
        pytest.param({"20261121100059999"}, "20261121100060000", id="known-and-no-time-of-day"),
    ],
)
def test_instant_that_no_timeline_knows_is_a_little_younger(known: set[str], expected: str) -> None:
    assert find_unused_instant("20261121100059998", known) == expected


def test_builder_announces_itself_and_fixes_the_number_of_file_groups() -> None:
    settings = build_settings(INDEX, None, {})
    groups = "hoodie.metadata.global.record.level.index.{}.filegroup.count"
    assert settings["hoodie.metadata.index.async"] == "true"
    assert settings[groups.format("min")] == settings[groups.format("max")] == "10"
    own = build_settings(INDEX, None, {groups.format("min"): "3"})
    assert own[groups.format("max")] == "3"


def test_writers_keep_all_but_three_kinds_current_while_they_are_built() -> None:
    found = {
        kind: upkeep_of(kind) for kind in (INDEX, "column_stats", "files", "secondary_index_city", "expr_index_day")
    }
    assert found == {
        INDEX: Upkeep.BY_WRITERS,
        "column_stats": Upkeep.BY_WRITERS,
        "files": Upkeep.NONE,
        "secondary_index_city": Upkeep.BY_BUILDER,
        "expr_index_day": Upkeep.BY_BUILDER,
    }


def test_options_of_ours_do_not_reach_hudi_and_wrong_ones_are_refused() -> None:
    options = {"lake.index.check": "full", "lake.index.wait_s": "7", "hoodie.x": "1"}
    assert hudi_settings_of(options) == {"hoodie.x": "1"}
    read = index_options(options)
    assert (read.check, read.wait_s, read.drop_first, read.wanted) == ("full", 7.0, False, ())
    with pytest.raises(IndexRequestError):
        index_options({"lake.index.wanted": "[{}]"})


def test_later_tries_of_a_run_know_what_the_first_one_dropped() -> None:
    first = drop_mark(INDEX, "manual__2026-11-21/1")
    assert first == drop_mark(INDEX, "manual__2026-11-21/2")
    assert first.startswith(f"dropped-{INDEX}-")
    others = [drop_mark(INDEX, "manual__2026-11-22/1"), drop_mark("files", "a"), drop_mark(INDEX, "a")]
    assert len({first, *others}) == 4


@pytest.mark.parametrize("spec", parse_indexes(EVERY_KIND), ids=lambda spec: spec.partition)
def test_hudis_type_of_a_plan_follows_from_its_folder(spec: IndexSpec) -> None:
    assert hudi_type_of(spec.partition) == spec.hudi_type


def test_run_remembers_which_indexes_it_built() -> None:
    tally = IndexRunResult()
    tally.complete(IndexPlan("20261121100000000", INDEX, "", is_inflight=True))
    assert (tally.completed, tally.built) == (["20261121100000000"], {INDEX})


BUILD, END = "20261121202547585", "20261121202601732"
DURING, AFTER = "20261121202553450", "20261121202605000"


@pytest.mark.parametrize(
    ("base", "timeline", "hiding"),
    [
        pytest.param(BUILD, [], (), id="nobody-compacted"),
        pytest.param(
            DURING, [f"{DURING}.compaction.requested", f"{DURING}_{DURING}.commit"], (DURING,), id="while-it-was-built"
        ),
        pytest.param(BUILD, [f"{DURING}.compaction.requested"], (DURING,), id="planned-meanwhile-and-pending"),
        pytest.param(BUILD, [f"{DURING}.compaction.requested", f"{DURING}_{DURING}.commit"], (), id="of-other-indexes"),
        pytest.param(AFTER, [f"{AFTER}.compaction.requested", f"{AFTER}_{AFTER}.commit"], (), id="when-it-was-built"),
    ],
)
def test_compaction_that_hides_what_a_build_wrote(base: str, timeline: list[str], hiding: tuple[str, ...]) -> None:
    files = [f"record-index-0000-0_0-11-75_{BUILD}.hfile", f"record-index-0000-0_1-176-325_{base}.hfile"]
    files += [f".record-index-0000-0_{BUILD}.log.1_0-0-0", ".hoodie_partition_metadata"]
    names = [f"{BUILD}.deltacommit.requested", f"{BUILD}_{END}.deltacommit", *timeline]
    assert find_shadowing(BUILD, files, names) == hiding


@pytest.mark.parametrize(
    ("there", "found", "missed", "doubled"),
    [
        pytest.param({"a": 1, "b": 1}, {"a": 1, "b": 1}, (), (), id="whole"),
        pytest.param({"a": 1, "b": 1}, {"a": 1}, ("b",), (), id="missed"),
        pytest.param({"a": 2}, {"a": 1}, (), ("a",), id="one place for a key that is there twice"),
        pytest.param({"a": 2}, {}, ("a",), ("a",), id="not even one of two"),
        pytest.param({}, {"a": 1}, (), (), id="written in between"),
    ],
)
def test_rows_that_searches_miss(
    there: dict[str, int], found: dict[str, int], missed: tuple[str, ...], doubled: tuple[str, ...]
) -> None:
    assert find_missed(there, found) == (missed, doubled)
