"""What each file of a table is, by its name and by what timeline, archive, plans and clock say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_lake_provider.instant_clock import DAY_MS, HOUR_MS
from lake_jobs.services.orphan_rules import (
    AgeLimits,
    FileFinding,
    FileStanding,
    ListedFile,
    Names,
    OrphanRules,
    OrphanSettingError,
    TableEvidence,
    describe_findings,
    judge_files,
    min_age_ms,
    parse_name,
    read_orphan_rules,
)

GROUP = "7e1c2b9a-4c1d-4f7e-9a51-3d1f0c9b2a11-0"
OTHER = "aa1c2b9a-4c1d-4f7e-9a51-3d1f0c9b2a22-0"
FIRST, WRITE, LATER = "20261101100000000", "20261110100000000", "20261112100000000"
OLD_MS, LIMITS = 1000, AgeLimits(2000, "20261115000000000")


def base(instant: str = WRITE, group: str = GROUP, token: str = "0-1-0", partition: str = "city=Oslo") -> str:
    return f"{partition}/{group}_{token}_{instant}.parquet"


def log(instant: str = WRITE, group: str = GROUP, suffix: str = "") -> str:
    return f"city=Oslo/.{group}_{instant}.log.1_0-2-0{suffix}"


def evidence(*named: str, **changes: Any) -> TableEvidence:
    known = TableEvidence(
        9, 9, Names(path.encode() for path in named), {FIRST: "", WRITE: "", LATER: ""}, known_from=FIRST, pending={}
    )
    return replace(known, **changes)


def judge(path: str, known: TableEvidence, *others: str, modified_ms: int = OLD_MS) -> FileFinding:
    files = [ListedFile(path, 10, modified_ms), *(ListedFile(other, 10, OLD_MS) for other in others)]
    return judge_files(files, known, LIMITS)[0]


@pytest.mark.parametrize(
    ("name", "instant", "is_log"),
    [
        (f"{GROUP}_0-1-0_{WRITE}.parquet", WRITE, False),
        (f"{GROUP}_12-345-6789_20191110100000.orc", "20191110100000", False),
        (f".{GROUP}_{WRITE}.log.12_0-1-0", WRITE, True),
        (f".{GROUP}_{WRITE}.log.1_0-1-0.cdc", WRITE, True),
        (f".{GROUP}_{WRITE}.log.1", WRITE, True),
    ],
)
def test_names_of_data_files_are_understood(name: str, instant: str, is_log: bool) -> None:
    parts = parse_name(name)
    assert parts is not None
    assert (parts.group, parts.instant, parts.is_log) == (GROUP, instant, is_log)


@pytest.mark.parametrize(
    "name",
    [
        "_SUCCESS",
        "part-00000-a.snappy.parquet",
        f"{GROUP}_{WRITE}.parquet",
        "x_0-1-0_1.parquet",
        "report_hudiext",
        "lock",
    ],
)
def test_any_other_name_stays_and_is_reported(name: str) -> None:
    assert parse_name(name) is None
    found = judge(f"city=Oslo/{name}", evidence())
    assert (found.standing, "not a name" in found.reason) == (FileStanding.AMBIGUOUS, True)


def test_partition_metadata_is_part_of_the_table() -> None:
    assert judge("city=Oslo/.hoodie_partition_metadata", evidence()).standing is FileStanding.KNOWN
    assert judge(".hoodie_partition_metadata.parquet", evidence()).standing is FileStanding.KNOWN


def test_failed_attempt_of_a_completed_write_is_an_orphan() -> None:
    committed, failed = base(), base(token="0-9-7")
    known = evidence(committed)
    assert judge(committed, known).standing is FileStanding.KNOWN
    found = judge(failed, known, committed)
    assert found.standing is FileStanding.ORPHAN
    assert WRITE in found.reason
    # A task that made new file groups; a log file; a change log.
    for path in (base(group=OTHER), log(group=OTHER), log(group=OTHER, suffix=".cdc")):
        assert judge(path, known, committed).standing is FileStanding.ORPHAN, path


def test_failed_attempt_stays_where_the_committed_file_and_all_later_ones_are_missing() -> None:
    found = judge(base(token="0-9-7"), evidence(base()))
    assert (found.standing, "missing" in found.reason) == (FileStanding.AMBIGUOUS, True)
    # A later version of the group is there, by a write or by the metadata table: the committed one was cleaned.
    listed = evidence(base(), listed=Names([base(LATER).encode()]))
    assert judge(base(token="0-9-7"), listed, base(LATER)).standing is FileStanding.ORPHAN
    assert judge(base(token="0-9-7"), evidence(base(), base(LATER)), base(LATER)).standing is FileStanding.ORPHAN


@pytest.mark.parametrize(
    "document",
    [
        b'{"path":"city=Oslo/%s"}',
        b'{"prevBaseFile":"%s"}',
        b'{"logFiles":["x","%s"]}',
        b'{"cdcStats":{"city=Oslo/%s":12}}',
        b"\x92\x01%s\x00",
        b"B%s\x02",
    ],
)
@pytest.mark.parametrize("path", [base(token="0-9-7"), log(), log(suffix=".cdc")])
def test_a_file_that_any_field_of_any_document_names_stays(document: bytes, path: str) -> None:
    names = Names([document % path.rpartition("/")[2].encode()])
    assert judge(path, evidence(named=names)).standing is FileStanding.KNOWN
    found = judge(path, evidence(mentioned=(("the pending clean 1", names),)))
    assert (found.standing, found.reason) == (FileStanding.KNOWN, "the pending clean 1 names it")
    found = judge(path, evidence(listed=names))
    assert (found.standing, found.reason) == (FileStanding.KNOWN, "the metadata table names it")


def test_name_within_a_name_is_not_that_name() -> None:
    names = Names([base(group=f"f{GROUP}").encode()])
    # Only letters before it can be another text's length; behind it nothing can.
    assert f"{GROUP}_0-1-0_{WRITE}.parquet2" not in names
    assert f"{GROUP}_0-1-0_{WRITE}.parque" not in names
    assert f"{GROUP}_1-0_{WRITE}.parquet" not in names


@pytest.mark.parametrize("field", ["pending", "living"])
def test_what_is_pending_or_alive_keeps_its_files(field: str) -> None:
    mine: Mapping[str, Any] = {field: {"20261111100000000": "the pending commit 20261111100000000"}}
    found = judge(base("20261111100000000"), evidence(**mine))
    assert (found.standing, found.reason) == (FileStanding.IN_USE, "it belongs to the pending commit 20261111100000000")
    assert judge(base("20261111100000001"), evidence(**mine)).standing is FileStanding.ORPHAN


def test_partition_of_a_living_writer_stays_as_it_is() -> None:
    known = evidence(busy_partitions={"city=Oslo": LATER})
    assert judge(base(group=OTHER), known).standing is FileStanding.IN_USE
    assert judge(base(group=OTHER, partition="city=Rome"), known).standing is FileStanding.ORPHAN


def test_write_that_no_timeline_knows_is_an_orphan_only_as_far_back_as_they_know_all() -> None:
    lost = base("20261111100000000")
    assert judge(lost, evidence()).standing is FileStanding.ORPHAN
    for known_from, word in (("", "not readable"), ("20261111100000000", "older than"), (LATER, "older than")):
        found = judge(lost, evidence(known_from=known_from))
        assert (found.standing, word in found.reason) == (FileStanding.AMBIGUOUS, True), known_from


def test_write_whose_metadata_is_not_readable_keeps_all_its_files() -> None:
    found = judge(base(), evidence(completed={WRITE: "damaged"}))
    assert (found.standing, "damaged" in found.reason) == (FileStanding.AMBIGUOUS, True)


@pytest.mark.parametrize(("version", "first"), [(6, 6), (9, 6), (6, 9)])
def test_log_files_that_do_not_name_their_write_stay(version: int, first: int) -> None:
    known = evidence(table_version=version, first_version=first)
    assert judge(log(), known).standing is FileStanding.AMBIGUOUS
    assert judge(log(suffix=".cdc"), known).standing is FileStanding.AMBIGUOUS
    assert judge(base(group=OTHER), known).standing is FileStanding.ORPHAN


@pytest.mark.parametrize("instant", ["00000000000001", "00000000000000002", "20261399999999999"])
def test_files_of_a_bootstrap_stay(instant: str) -> None:
    assert judge(base(instant), evidence(known_from="0")).standing is FileStanding.AMBIGUOUS


def test_young_files_stay_by_modification_by_instant_and_by_markers() -> None:
    path = base(group=OTHER)
    assert judge(path, evidence(), modified_ms=LIMITS.modified_before_ms).standing is FileStanding.YOUNG
    assert judge(path, evidence(), modified_ms=LIMITS.modified_before_ms - 1).standing is FileStanding.ORPHAN
    assert judge(path, evidence(), modified_ms=0).standing is FileStanding.AMBIGUOUS
    recent = base(LIMITS.requested_before, OTHER)
    assert judge(recent, evidence()).standing is FileStanding.YOUNG
    assert judge(path, evidence(markers_ms={WRITE: 2000})).standing is FileStanding.YOUNG
    assert judge(path, evidence(markers_ms={WRITE: 1999})).standing is FileStanding.ORPHAN


def test_what_a_person_put_back_stays() -> None:
    path = base(group=OTHER)
    assert judge(path, evidence(put_back={path})).standing is FileStanding.AMBIGUOUS


def test_no_orphan_is_younger_than_the_longest_commit() -> None:
    rules = OrphanRules(True, 1, 30, 1000)
    assert min_age_ms(rules, []) == DAY_MS
    assert min_age_ms(rules, [(WRITE, "20261110110000000")]) == DAY_MS
    assert min_age_ms(rules, [(WRITE, "20261113100000000"), (WRITE, WRITE), ("x", "y")]) == 3 * DAY_MS
    assert HOUR_MS < DAY_MS


def test_settings_are_read_and_refused_by_name() -> None:
    rules = read_orphan_rules({"lake.orphans.mode": "quarantine", "lake.orphans.min_age_days": "3"}, "table t")
    assert rules == OrphanRules(True, 3, 30, 1000)
    assert not read_orphan_rules({}, "table t").quarantines
    for value in ("0", "-1", "soon", ""):
        with pytest.raises(OrphanSettingError, match=r"table t: lake\.orphans\.keep_days"):
            read_orphan_rules({"lake.orphans.keep_days": value}, "table t")


def test_report_counts_bytes_and_names_examples() -> None:
    known = evidence(base())
    files = [
        ListedFile(base(token="0-9-7"), 1_234, OLD_MS),
        ListedFile(base(), 7, OLD_MS),
        ListedFile("x/_SUCCESS", 0, 5),
    ]
    text = describe_findings(judge_files(files, known, LIMITS))
    assert text.startswith("1 orphan files of 1,234 bytes among 3 files (1 known, 1 ambiguous)")
    assert base(token="0-9-7") in text
    assert "not a name that Hudi gives" in text


def test_report_names_the_tables_below_that_were_not_searched() -> None:
    assert "not searched" not in describe_findings(())
    few = describe_findings((), ("archive/a", "b"))
    assert few.endswith("not searched, as they are tables of their own: archive/a, b")
    assert describe_findings((), tuple("abcdefg")).endswith("a, b, c, d, e and 2 more")
