"""Marker names and files: as Hudi writes them, and as no writer should."""

from __future__ import annotations

import random
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from airflow_lake_provider.hudi.active_writes import (
    is_marker_name,
    parse_direct_marker,
    parse_marker_file,
)
from airflow_lake_provider.hudi.commit_metadata import file_group_key, split_file_group_key
from airflow_lake_provider.hudi.marker_scan import scan_marker_files
from tests.support.marker_partitions import PARTITIONS

INSTANT = "20261121104100123"
GROUP = "6c1f2d3e-0000-4a4a-9b9b-123456789abc-0"


def base(partition: str = "city=Oslo", group: str = GROUP, kind: str = "MERGE", format: str = "parquet") -> str:
    name = f"{group}_0-23-45_{INSTANT}.{format}.marker.{kind}"
    return f"{partition}/{name}" if partition else name


def log(partition: str = "city=Oslo", kind: str = "CREATE", end: str = "") -> str:
    return f"{partition}/.{GROUP}_{INSTANT}.log.1_0-23-45{end}.marker.{kind}"


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("kind", ["CREATE", "MERGE", "APPEND"])
@pytest.mark.parametrize("format", ["parquet", "orc", "hfile"])
def test_base_file_marker_names_its_file_group(partition: str, kind: str, format: str) -> None:
    path = base(partition, kind=kind, format=format)
    key = file_group_key(partition, GROUP)
    assert parse_direct_marker(path) == key
    assert parse_marker_file(f"{path}\n".encode()) == type(parse_marker_file(b""))((key,), is_whole=True)
    assert split_file_group_key(key) == (partition, GROUP)


@pytest.mark.parametrize("end", ["", ".cdc"])
def test_log_file_and_base_file_are_one_file_group(end: str) -> None:
    assert parse_direct_marker(log(end=end)) == parse_direct_marker(base())
    both = parse_marker_file(f"{log(end=end)}\n{base()}\n".encode())
    assert set(both.keys) == {file_group_key("city=Oslo", GROUP)}
    assert both.is_whole


def test_partitions_that_begin_alike_up_to_an_underscore_are_two() -> None:
    found = parse_marker_file(f"{base('event_date=1')}\n{base('event_date=2')}\n".encode())
    assert len(set(found.keys)) == 2


@pytest.mark.parametrize(
    ("content", "groups", "is_whole"),
    [
        pytest.param("", [], False, id="empty"),
        pytest.param("\n", [], False, id="one-empty-line"),
        pytest.param(f"{base('a')}\n{base('b')[:-1]}", ["a"], False, id="cut-in-the-last-word"),
        pytest.param(f"{base('a')}\n{base('b')[:20]}", ["a"], False, id="cut-in-the-file-id"),
        pytest.param(f"{base('a')}\nb/6c1f", ["a"], False, id="cut-in-the-name"),
        pytest.param(f"{base('a')}\n{base('b')}", ["a", "b"], True, id="no-newline-at-the-end"),
        pytest.param(f"{base('a')},{base('b')},{base('c')}", ["a", "b", "c"], True, id="joined-by-a-second-server"),
        pytest.param(f"{base('a')},{base('b')}{base('c')}\n", ["a", "b", "c"], True, id="joined-and-added-to"),
        pytest.param(f"{base('a')}\r\n{base('b')}\r\n", ["a", "b"], True, id="windows-line-ends"),
        pytest.param(f"{base('a')}\nnonsense\n{base('b')}\n", ["a", "b"], False, id="a-line-that-is-no-marker"),
        pytest.param(f"nonsense\n{base('a')}\n", ["a"], False, id="begins-with-nonsense"),
        pytest.param(f"\n{base('a')}\n", ["a"], False, id="begins-with-an-empty-line"),
        pytest.param(f"{base('a')}\n\n{base('b')}\n", ["a", "b"], False, id="an-empty-line-between"),
        pytest.param(f"{base('a')}\n\0\0\0\0", ["a"], False, id="preallocated-zeros"),
    ],
)
def test_damaged_file_gives_what_is_whole_and_says_that_it_is_not(
    content: str, groups: list[str], is_whole: bool
) -> None:
    found = parse_marker_file(content.encode())
    assert set(found.keys) == {file_group_key(group, GROUP) for group in groups}
    assert found.is_whole is is_whole


def test_file_cut_off_anywhere_never_counts_as_whole_with_less() -> None:
    markers = [base("p=1"), log("p_q=2"), base("p_q=3", kind="CREATE"), base("")]
    content = "".join(f"{marker}\n" for marker in markers).encode()
    whole = set(parse_marker_file(content).keys)
    ends = {0}
    for marker in markers:
        ends |= {max(ends) + len(marker), max(ends) + len(marker) + 1}
    for length in range(len(content)):
        found = parse_marker_file(content[:length])
        assert set(found.keys) <= whole
        # A cut exactly between two markers cannot be seen in them; the file's size shows it then.
        assert found.is_whole is (length in ends and length > 0)


def test_hundred_thousand_lines_are_all_read() -> None:
    content = "".join(f"{base(f'p={n % 100}', f'{n:08d}-0')}\n" for n in range(100_000)).encode()
    found = parse_marker_file(content)
    assert len(set(found.keys)) == 100_000
    assert found.is_whole


@pytest.mark.parametrize(
    "name", ["MARKERS.type", "x.parquet", f"{GROUP}.marker.MERGE", "_.marker.CREATE", "a.marker.MERGE.crc", ""]
)
def test_name_that_is_no_marker_names_no_file_group(name: str) -> None:
    assert parse_direct_marker(name) is None


def test_marker_of_an_unknown_shape_is_still_seen_as_a_marker() -> None:
    assert is_marker_name("who-knows.marker.MERGE")
    assert not is_marker_name("city=Oslo")
    assert not is_marker_name(f".{GROUP}.marker.MERGE.crc")


def plain_key(line: str) -> bytes | None:
    """Return the key of a base file's marker, by cutting its name at the underscores; None for anything else."""
    folder, slash, name = line.rpartition("/")
    file_id, *rest = name.split("_")
    if len(rest) != 2 or not rest[1].split(".")[0].isdigit():
        return None
    return f"{folder}{slash}{file_id}".encode()


def draw_usual(draw: random.Random, partition: str) -> str:
    group = f"{uuid.UUID(int=draw.getrandbits(128), version=4)}-{draw.choice((0, 0, 7, 10))}"
    kind, format = draw.choice(("CREATE", "MERGE")), draw.choice(("parquet", "parquet", "orc"))
    name = f"{group}_{draw.randrange(300)}-{draw.randrange(9)}-{draw.randrange(9999)}_{INSTANT}.{format}.marker.{kind}"
    return f"{partition}/{name}" if partition else name


@pytest.mark.parametrize("seed", range(40))
def test_scanned_markers_are_those_of_a_plain_reading(seed: int) -> None:
    draw = random.Random(seed)
    # Each of one number of underscores, as those of one table are.
    partitions = draw.choice(
        (["city=Oslo", "city=São Paulo", "a/b/c", "dot.ted", "x y,z\"'\\"], ["a_b=1", "a_b=22/c"], [""])
    )
    lines = [draw_usual(draw, draw.choice(partitions)) for _ in range(draw.choice((1, 20, 3000)))]
    contents = ["".join(f"{line}\n" for line in lines[n::3]).encode() for n in range(3) if lines[n::3]]
    scan = scan_marker_files(contents)
    assert scan is not None
    keys = {key for line in lines if (key := plain_key(line))}
    assert len(keys) == len(lines)
    asked = frozenset(draw.sample(sorted(keys), len(keys) // 2))
    # Others whose file ids are the same, too short, or any.
    others = {b"elsewhere/" + key.rpartition(b"/")[2] for key in keys} | {b"short", file_group_key("", GROUP)}
    assert scan.find_shared(asked | others) == asked
    assert scan.find_shared(frozenset(keys)) == keys
    assert scan.find_shared(frozenset()) == frozenset()


def spoil(draw: random.Random, lines: list[str]) -> bytes:
    """Return the content of a marker file with something unusual in one place, or in every line."""
    line = draw.choice(lines)
    partition, _, name = line.rpartition("/")
    odd = draw.choice(
        [
            "",
            "nonsense",
            line[: draw.randrange(len(line))],
            f"{line},{draw.choice(lines)}",
            f"{line}\r",
            line.replace("/", "\r/", 1),
            line.replace(".parquet", ".log"),
            line.replace("-", "_"),
            f"{partition}_1_2/{name}",
            f"{partition}/x.marker.MERGE/{name}",
            f"{partition}/x.log.1/.{name}",
            f"{partition}/.{name}",
            f"{partition}/{GROUP}_{INSTANT}.log.1_0-23-45.marker.APPEND",
            f"{partition}/.{GROUP}_{INSTANT}.log.1_0-23-45.marker.APPEND",
            f"{partition}/short_0-1-2_{INSTANT}.parquet.marker.MERGE",
            f"{partition}/{GROUP}__{INSTANT}.parquet.marker.MERGE",
            f"{partition}/{GROUP}_0-ö-2_{INSTANT}.parquet.marker.MERGE",
            f"{partition}/{GROUP}_12_{INSTANT}.parquet.marker.MERGE",
            f"{partition}/{GROUP}_0-1-2_{INSTANT}.parquet.marker.DELETE",
            f"x_{GROUP}_12_{INSTANT}.parquet.marker.MERGE",
            f"{partition}/.{name}".replace(".parquet", ".log"),
            f"\ufeff{line}",
            f"{line}\0",
            f'"{line}"',
        ]
    )
    spoilt = [odd] * len(lines) if draw.random() < 0.3 else lines.copy()
    spoilt[draw.randrange(len(lines))] = odd
    return ("\n".join(spoilt) + draw.choice(("\n", "\n", ""))).encode()


@pytest.mark.parametrize("seed", range(300))
def test_files_with_anything_unusual_are_scanned_only_when_it_changes_nothing(seed: int) -> None:
    draw = random.Random(seed)
    lines = [draw_usual(draw, draw.choice((["a/b"], ["c_d=1/e"])[seed % 2])) for _ in range(draw.choice((1, 4, 40)))]
    contents = [spoil(draw, lines), "".join(f"{line}\n" for line in lines).encode()]
    draw.shuffle(contents)
    scan, parsed = scan_marker_files(contents), [parse_marker_file(content) for content in contents]
    if scan is not None:
        assert all(found.is_whole for found in parsed)
        assert [content.count(b"\n") for content in contents] == [len(found.keys) for found in parsed]
        everything = frozenset(key for found in parsed for key in found.keys)
        assert scan.find_shared(everything | {file_group_key("a/b", GROUP), b"elsewhere"}) == everything


def test_task_that_meets_few_markers_imports_no_arrow(tmp_path: Path) -> None:
    """Arrow and NumPy take a third of a second of CPU, in the task of each service."""
    folder = tmp_path / ".hoodie" / ".temp" / INSTANT
    folder.mkdir(parents=True)
    (folder / "MARKERS.type").write_text("TIMELINE_SERVER_BASED")
    (folder / "MARKERS0").write_text(base() + "\n")
    script = (
        "import sys, airflow_lake_provider.operators.table_service\n"
        "from airflow_lake_provider.conflict.marker_reader import MarkerReader\n"
        "from airflow_lake_provider.storage.table_storage import open_storage\n"
        f"assert MarkerReader(open_storage({str(tmp_path)!r})).read({INSTANT!r}, 0).count == 1\n"
        "print(sorted({'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]", run.stderr
