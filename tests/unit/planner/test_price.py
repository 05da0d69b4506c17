"""What a run will cost and bring, by the records of those before it."""

from __future__ import annotations

import random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.price import (
    COOLDOWN_MS,
    GIB,
    MAX_COOLDOWN_MS,
    MIB,
    MIN_POINTS,
    NEWEST,
    PRIOR_FACTOR,
    PRIOR_START_S,
    Benefit,
    Operation,
    Work,
    benefit_of,
    cooldown_until_ms,
    cores_of,
    predict,
    work_of,
)
from airflow_lake_provider.planner.rules import Decision, Verdict


def compaction(merged: float, logs: float, groups: int = 10, log_files: int = 40) -> Decision:
    evidence = {
        "merged_groups": groups, "merged_base_bytes": int(merged), "log_bytes": int(logs), "log_files": log_files,
        "unsized_file_groups": 0,
    }  # fmt: skip
    return Decision(Service.COMPACTION, Verdict.DUE, "due", key_instant="1", evidence=evidence)


def record(size_bytes: float, seconds: float, written: float | None = None, **changes: float) -> Operation:
    return Operation(Work(size_bytes, 50), seconds, size_bytes if written is None else written, **changes)  # type: ignore[arg-type]


def test_prior_says_what_no_record_says_and_how_unsure_it_is() -> None:
    price = predict(compaction(400 * MIB, 0), [], [])
    assert price.seconds.value == pytest.approx(PRIOR_START_S + 20 + 2.5)
    assert (price.seconds.low, price.seconds.high) == pytest.approx(
        (price.seconds.value / PRIOR_FACTOR, price.seconds.value * PRIOR_FACTOR)
    )
    assert price.basis == "the documented prior"


def test_table_that_is_five_times_slower_than_all_others_is_priced_by_its_own_records() -> None:
    fleet = [record(size * MIB, 10 + size) for size in range(10, 200, 10)]
    own = [record(size * MIB, 50 + 5 * size) for size in (20, 50, 80, 120)]
    wanted = compaction(100 * MIB, 0)
    assert predict(wanted, [], fleet).seconds.value == pytest.approx(110, rel=0.02)
    assert predict(wanted, own[:1], fleet).seconds.value > 150
    price = predict(wanted, own, fleet)
    assert price.seconds.value == pytest.approx(550, rel=0.02)
    assert price.basis == "the table's last 4 runs of it"


def test_one_run_on_a_busy_cluster_does_not_bend_the_line() -> None:
    own = [record(size * MIB, 12 + 0.5 * size) for size in range(10, 110, 10)]
    own[3] = record(40 * MIB, 4000)
    assert predict(compaction(60 * MIB, 0), own, []).seconds.value == pytest.approx(42, rel=0.05)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), noise=st.floats(0.0, 0.3))
def test_after_twenty_runs_the_median_error_is_about_the_noise(seed: int, noise: float) -> None:
    rng = random.Random(seed)
    own: list[Operation] = []
    errors, inside = [], 0
    for number in range(60):
        size = rng.uniform(50, 500) * MIB
        truth = (14 + size / (30 * MIB)) * rng.lognormvariate(0, noise)
        price = predict(compaction(size, 0), own[-NEWEST:][::-1], [])
        if number >= 20:
            errors.append(abs(price.seconds.value - truth) / truth)
            inside += price.seconds.low <= truth <= price.seconds.high
        own.append(record(size, truth))
    assert median(errors) <= 0.02 + 1.2 * noise
    assert inside >= 24, "an interval holds most of what happens"


@given(
    sizes=st.lists(st.floats(0, 1e12), min_size=0, max_size=25), seconds=st.floats(0.001, 1e6), size=st.floats(0, 1e12)
)
def test_figures_are_never_negative_and_lie_in_their_interval(sizes: list[float], seconds: float, size: float) -> None:
    own = [record(one, seconds * (1 + index % 3)) for index, one in enumerate(sizes)]
    price = predict(compaction(size, 0), own, [])
    for found in (price.seconds, price.bytes):
        assert 0 <= found.low <= found.value <= found.high
    assert price.core_s > 0


def test_runs_that_found_nothing_and_those_that_are_too_old_say_nothing_of_the_price() -> None:
    own = [record(10 * MIB, 30)] * 5
    nothing = [Operation(Work(10 * MIB, 50), 2, 0, found_nothing=True)] * 4
    old = [record(10 * MIB, 9000)] * 50
    assert predict(compaction(10 * MIB, 0), [*nothing, *own], []).seconds.value == pytest.approx(30)
    assert predict(compaction(10 * MIB, 0), [*([record(10 * MIB, 30)] * NEWEST), *old], []).seconds.value == 30


@pytest.mark.parametrize(
    ("service", "evidence", "work", "points"),
    [
        pytest.param(
            Service.COMPACTION,
            {"merged_groups": 4, "merged_base_bytes": 3 * GIB, "unsized_file_groups": 1, "log_bytes": 64 * MIB,
             "log_files": 10},
            Work(4 * GIB + 64 * MIB, 14), 2.0, id="compaction-whose-unsized-group-counts-like-the-others",
        ),
        pytest.param(
            Service.CLUSTERING, {"all_small_files": 30, "all_small_file_bytes": 120 * MIB},
            Work(120 * MIB, 30), 2.9, id="clustering",
        ),
        pytest.param(
            Service.CLEAN, {"freed_files": 20, "freed_bytes": 2 * GIB}, Work(0, 20), 4.0, id="clean-rewrites-nothing"
        ),
        pytest.param(Service.ARCHIVE, {"surplus_writes": 15}, Work(0, 15), 1.5, id="archive"),
        pytest.param(Service.LOGCOMPACTION, {"log_files": 25, "merged_groups": 5}, Work(0, 25), 2.0, id="log-files"),
        pytest.param(Service.ROLLBACK, {"overdue_writes": 1}, Work(0, 1), 0.1, id="rollback"),
        pytest.param(Service.SAVEPOINT, {}, Work(0, 1), MIN_POINTS, id="nothing-that-metadata-shows"),
        pytest.param(Service.COMPACTION, {"log_bytes": None, "log_files": "x"}, Work(0, 1), MIN_POINTS, id="none"),
    ],
)  # fmt: skip
def test_work_and_benefit_come_from_the_evidence(
    service: Service, evidence: dict[str, int], work: Work, points: float
) -> None:
    assert work_of(service, evidence) == work
    assert benefit_of(service, evidence).points == pytest.approx(points)


def test_promise_that_was_never_kept_is_believed_less() -> None:
    clean = Decision(Service.CLEAN, Verdict.DUE, "due", key_instant="1", evidence={"freed_files": 100})
    kept = [Operation(Work(0, 100), 20, files=100, expected_files=100)] * 5
    broken = [Operation(Work(0, 100), 20, files=20, expected_files=100)] * 5
    assert predict(clean, kept, []).benefit == Benefit(files=100)
    assert predict(clean, broken, []).benefit == Benefit(files=20)


def test_service_that_brings_little_pauses_twice_as_long_each_time() -> None:
    good = Operation(Work(0, 100), 20, files=90, expected_files=100, ended_ms=1)
    little = Operation(Work(0, 100), 20, files=3, expected_files=100, ended_ms=1000)
    nothing = Operation(Work(0, 100), 20, found_nothing=True, ended_ms=1000)
    unknown = Operation(Work(0, 100), 20, ended_ms=1000)
    assert cooldown_until_ms([]) == cooldown_until_ms([good, little]) == cooldown_until_ms([unknown]) == 0
    assert cooldown_until_ms([little, good]) == 1000 + COOLDOWN_MS
    assert cooldown_until_ms([little, nothing, good]) == 1000 + 2 * COOLDOWN_MS
    assert cooldown_until_ms([little] * 40) == 1000 + MAX_COOLDOWN_MS


@pytest.mark.parametrize(
    ("conf", "cores"),
    [
        pytest.param({}, 1, id="none"),
        pytest.param({"spark.executor.instances": "3", "spark.executor.cores": "4"}, 12, id="executors"),
        pytest.param({"spark.dynamicAllocation.maxExecutors": "5", "spark.executor.instances": "1"}, 5, id="dynamic"),
        pytest.param({"spark.cores.max": "8", "spark.executor.cores": "2"}, 8, id="standalone"),
        pytest.param({"spark.executor.instances": "all"}, 1, id="nonsense"),
    ],
)
def test_cores_by_the_settings_of_the_job(conf: dict[str, str], cores: int) -> None:
    assert cores_of(conf) == cores
