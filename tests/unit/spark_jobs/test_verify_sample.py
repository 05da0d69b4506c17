"""Which rewritten rows are compared."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from airflow_lake_provider.job_contract import Verify
from lake_jobs.replication.file_slices import CompletedInstants, FileSlice, parse_name
from lake_jobs.verify.sample import (
    COMPARED_BYTES_PER_S,
    COMPARED_PER_WRITTEN,
    JOB_S,
    MAX_SAMPLE_BYTES,
    PART_S,
    NewFile,
    Unit,
    choose_units,
    costs_by_read,
    costs_by_written,
    explain_none,
    files_of_plan,
    find_gone_groups,
    find_miscounted,
    units_of_groups,
    units_of_partitions,
)
from lake_jobs.verify.savings import IN_ADVANCE_S, SAMPLE_SHARE, Savings, parse_savings
from lake_jobs.verify.slices import before, find_doubtful, find_seen_slice, find_suspects, group_files, with_new

PLAN = "20260101000000000"


def units(count: int, size_bytes: int = 100) -> tuple[Unit, ...]:
    return tuple(Unit("p", (f"f{at}",), (f"p/f{at}.parquet",), size_bytes) for at in range(count))


def choose(units: tuple[Unit, ...], verify: Verify, instant: str, work_s: float, left_s: float = 0) -> tuple[Unit, ...]:
    left_s = left_s or SAMPLE_SHARE * work_s
    return choose_units(units, verify, instant, costs_by_written(units, work_s), left_s)


def instants(count: int) -> list[str]:
    return [f"{20260101000000000 + at}" for at in range(count)]


def cost_s(chosen: tuple[Unit, ...], of: int, work_s: float) -> float:
    """Return what a sample of equal units costs, by the measured rate."""
    return JOB_S + len(chosen) * (PART_S + COMPARED_PER_WRITTEN * work_s / of) if chosen else 0.0


@pytest.mark.parametrize("count", [1, 4, 8, 40])
@pytest.mark.parametrize("work_s", [1.0, 10.0, 60.0, 3600.0])
def test_samples_cost_a_twentieth_of_what_a_tables_runs_cost(count: int, work_s: float) -> None:
    saved = Savings(None)
    costs = []
    for plan in instants(300):
        chosen = choose(units(count), Verify.SAMPLE, plan, work_s, saved.offer(work_s))
        costs.append(cost_s(chosen, count, work_s))
        saved = saved.spend(work_s, costs[-1])

    for runs in range(10, 300):
        assert sum(costs[:runs]) <= SAMPLE_SHARE * runs * work_s + IN_ADVANCE_S
    one = cost_s(units(1), count, work_s)
    assert max(costs[1:]) <= one + SAMPLE_SHARE * work_s, "no run spends more than one part above its share"
    runs_of_a_part = one / (SAMPLE_SHARE * work_s) + 2
    compared = [at for at, cost in enumerate(costs) if cost]
    gaps = [later - at for at, later in pairwise(compared)]
    assert compared[0] <= runs_of_a_part
    assert all(gap <= runs_of_a_part + IN_ADVANCE_S / (SAMPLE_SHARE * work_s) for gap in gaps[:1])
    assert all(gap <= runs_of_a_part for gap in gaps[1:])


def test_the_first_run_is_compared_in_advance_and_the_next_ones_pay() -> None:
    first = Savings(None)
    assert first.offer(4.0) == IN_ADVANCE_S
    assert first.offer(1000.0) == 50.0
    after = first.spend(4.0, 1.5)
    assert after == Savings(pytest.approx(-1.3))
    assert after.offer(4.0) == pytest.approx(-1.1)


def test_damaged_savings_are_none() -> None:
    assert parse_savings(b'{"compaction": 1.5, "clustering": -2, "logcompaction": "x"}') == {
        "compaction": 1.5,
        "clustering": -2.0,
    }
    for content in (b"", b"{", b"[]", b"3", b"\xff"):
        assert parse_savings(content) == {}


def test_a_sample_is_as_large_as_what_is_left_for_it() -> None:
    assert len(choose(units(8), Verify.SAMPLE, PLAN, 1.0, left_s=2.0)) == 8
    assert len(sample(200, 1000.0)) == int((50 - JOB_S) / (PART_S + COMPARED_PER_WRITTEN * 5))
    huge = units(100, MAX_SAMPLE_BYTES // 2)
    assert len(choose(huge, Verify.SAMPLE, PLAN, 100_000.0)) == 2


def sample(count: int, work_s: float, plan: str = PLAN) -> tuple[Unit, ...]:
    return choose(units(count), Verify.SAMPLE, plan, work_s)


def test_every_part_has_its_turn() -> None:
    chosen = (choose(units(4), Verify.SAMPLE, plan, 100.0, left_s=20.0) for plan in instants(400))
    turns = Counter(unit.file_ids for one in chosen for unit in one)

    assert len(turns) == 4
    assert min(turns.values()) > max(turns.values()) / 2


def test_a_log_compaction_is_priced_by_what_is_read() -> None:
    """It writes a log file of a few bytes, and all rows of the base file are read to compare it."""
    (one,) = units(1)
    costs_s = costs_by_read({one: 100 * COMPARED_BYTES_PER_S})

    assert choose_units((one,), Verify.SAMPLE, PLAN, costs_s, 100.0) == ()
    assert choose_units((one,), Verify.SAMPLE, PLAN, costs_s, 102.0) == (one,)


def test_a_run_that_compares_nothing_says_why() -> None:
    assert explain_none(PLAN, costs_by_written(units(2), 100.0), 5.0) == (
        "a part takes about 26 s of work to compare, and this table's runs have 5.0 s left for it: one of the next "
        "is compared"
    )


def test_new_log_files_join_what_a_reader_merges() -> None:
    names = ("f_0-0-0_1.parquet", ".f_2.log.1_0-0-0", ".f_5.log.1_0-0-0", ".f_6.log.1_0-0-0")
    base, old, new, later = filter(None, map(parse_name, names))
    seen = FileSlice(base, (old,))
    assert with_new(seen, ("p/.f_5.log.1_0-0-0",), (base, old, new, later)) == FileSlice(base, (old, new))


def test_a_sample_is_the_same_in_each_try_and_another_one_for_another_plan() -> None:
    first = sample(100, 100.0)

    assert choose(tuple(reversed(units(100))), Verify.SAMPLE, PLAN, 100.0) == first
    assert sample(100, 100.0, "20260101000000001") != first


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(Unit("", (), ("f.parquet",), 100), id="a-partition-of-which-nothing-is-read"),
        pytest.param(Unit("q", ("g",), (), 0), id="a-file-group-without-a-new-file"),
    ],
)
def test_rows_on_one_side_only_are_always_compared(odd: Unit) -> None:
    for plan in instants(20):
        assert choose((*units(2), odd), Verify.SAMPLE, plan, 1000.0)[0] == odd


def test_all_and_off_are_what_they_say() -> None:
    assert choose(units(7), Verify.ALL, PLAN, 1000.0) == units(7)
    assert choose(units(7), Verify.OFF, PLAN, 1.0) == ()
    assert choose((), Verify.SAMPLE, PLAN, 1.0) == ()


def test_a_compaction_is_compared_by_file_group_and_a_clustering_by_partition() -> None:
    written = [NewFile("p", "f1", "p/f1_n.parquet", 5), NewFile("", "x", "x.parquet", 7)]

    assert units_of_groups([("p", "f1"), ("p", "f2")], written) == (
        Unit("", ("x",), ("x.parquet",), 7),
        Unit("p", ("f1",), ("p/f1_n.parquet",), 5),
        Unit("p", ("f2",), (), 0),
    )
    assert units_of_partitions([("p", "f1"), ("p", "f2")], written) == (
        Unit("", (), ("x.parquet",), 7),
        Unit("p", ("f1", "f2"), ("p/f1_n.parquet",), 5),
    )


def test_plans_name_file_groups_and_their_files() -> None:
    log = "s3a://lake/t/p/.f1_5.log.1_0-1-1"
    slices: list[dict[str, object]] = [
        {"partitionPath": "p", "fileId": "f1", "dataFilePath": "f1_0_1.parquet", "deltaFilePaths": [log]},
        {"partitionPath": None, "fileId": "f2", "dataFilePath": None, "deltaFilePaths": None},
    ]
    expected = {("p", "f1"): {"p/f1_0_1.parquet", "p/.f1_5.log.1_0-1-1"}, ("", "f2"): frozenset[str]()}
    assert files_of_plan(json.dumps({"operations": slices})) == expected
    assert files_of_plan(json.dumps({"inputGroups": [{"slices": slices}, {"slices": None}]})) == expected
    assert files_of_plan(json.dumps({"operations": None})) == {}


def test_a_file_group_of_which_a_plan_leaves_a_log_file_out_is_always_compared() -> None:
    known = CompletedInstants({"1": "2", "3": "4", "5": "6", "8": "9"}, begins="1")
    base, first, second, later = "f_0-0-0_1.parquet", ".f_3.log.1_0-0-0", ".f_5.log.1_0-0-0", ".f_8.log.1_0-0-0"
    sizes = dict.fromkeys([f"p/{name}" for name in (base, first, second, later)], 1) | {f"q/{base}": 1, "q/x": 1}
    groups = [("p", "f"), ("q", "f")]
    files = group_files(groups, sizes)
    whole = {("p", "f"): frozenset({f"p/{base}", f"p/{first}", f"p/{second}"}), ("q", "f"): frozenset({f"q/{base}"})}
    assert find_suspects(whole, files, known, "7", 9) == frozenset()
    less = whole | {("p", "f"): frozenset({f"p/{base}", f"p/{first}"})}
    suspects = find_suspects(less, files, known, "7", 9)
    assert suspects == {("p", "f")}
    odd, *others = units(8)
    odd = replace(odd, file_ids=("f",))
    costs_s = costs_by_written((odd, *others), 3600.0)
    for plan in instants(20):
        assert odd in choose_units((odd, *others), Verify.SAMPLE, plan, costs_s, 0.0, suspects)


def test_units_with_another_number_of_rows_are_suspects() -> None:
    plain, merged, short, torn = (
        Unit("p", (name,), (f"p/{name}_new",), 1) for name in ("plain", "merged", "short", "torn")
    )
    planned = {("p", name): frozenset({f"p/{name}_old"}) for name in ("plain", "short", "torn")}
    planned["p", "merged"] = frozenset({"p/merged_old", "p/.merged_5.log.1_0-0-0"})
    rows = {"plain": 10, "merged": 12, "short": 9, "torn": 10}
    written = [NewFile("p", name, f"p/{name}_new", 1, count) for name, count in rows.items()]
    counts = dict.fromkeys([f"p/{name}_old" for name in rows], 10)
    # A writer that loses a row counts it neither; a file that was torn has less than its writer counted.
    counts |= {"p/plain_new": 10, "p/merged_new": 12, "p/short_new": 9, "p/torn_new": 7}
    units = (plain, merged, short, torn)
    assert find_miscounted(units, planned, written, counts) == {("p", "short"), ("p", "torn")}
    assert find_miscounted([replace(plain, new_files=())], planned, (), {}) == frozenset()


def test_archived_writes_are_committed_ones_whatever_stays_at_the_head_of_the_timeline() -> None:
    known = CompletedInstants({"5": "6", "8": "9"}, begins="5")
    names = ["f_0-0-0_1.parquet", ".f_3.log.1_0-0-0", ".f_5.log.1_0-0-0", ".f_7.log.1_0-0-0", ".f_8.log.1_0-0-0"]
    files = [file for file in map(parse_name, names) if file is not None]

    seen = find_seen_slice(files, known, "9", table_version=9)

    # 3 is archived; 7 is not complete; 8 completed when the plan was made, not before it.
    assert seen is not None
    assert [file.instant for file in seen.files] == ["1", "3", "5"]


def test_the_archive_is_asked_only_about_log_files_older_than_a_base_file() -> None:
    known = CompletedInstants({"5": "6"}, begins="5")
    logs = [parse_name(f".f_{at}.log.1_0-0-0") for at in (2, 3, 5)]
    files = [file for file in logs if file is not None]

    assert find_doubtful(files, known) == ""
    base = parse_name("f_0-0-0_3.parquet")
    assert base is not None
    assert find_doubtful([*files, base], known) == "2"


def test_before_is_the_last_time_that_sorts_before() -> None:
    assert before("20260101000000000") == "20260100999999999"
    assert before("010") == "009"


def test_file_groups_without_any_file_are_gone() -> None:
    planned = (("p0", "a"), ("p0", "b"), ("", "c"), ("p1", "a"))
    present = ("p0/a_0-1-2_20260101000000000.parquet", ".c_20260101000000001.log.1_0-1-3", "p1/.b_1.log.1_0-1-3")
    assert find_gone_groups(planned, present) == (("p0", "b"), ("p1", "a"))
    assert find_gone_groups(planned[:1], present) == ()
