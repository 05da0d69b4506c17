"""Archives of layout 1 that are damaged, unknown, hostile, or change while they are read."""

from __future__ import annotations

import io
import json
import random
import struct
from pathlib import Path
from typing import Any

import fastavro
import pytest

from airflow_lake_provider.errors import DamagedFileError, UnsupportedTableError
from airflow_lake_provider.hudi import archive as archive_log
from airflow_lake_provider.hudi.archive import load_archived_commit
from airflow_lake_provider.hudi.archive_avro import MAGIC, DamagedBlock, DataBlock, read_blocks
from airflow_lake_provider.hudi.avro_schema import check_schema
from tests.unit.hudi.archive_tables import LOG, before_reads, load, outcome, seen, unpack_history

STRING = ["null", "string"]
STATS = {"type": "record", "name": "HoodieWriteStat", "fields": [{"name": "fileId", "type": STRING}]}
COMMIT = {
    "type": "record",
    "name": "HoodieCommitMetadata",
    "fields": [
        {"name": "partitionToWriteStats", "type": {"type": "map", "values": {"type": "array", "items": STATS}}},
        {"name": "operationType", "type": STRING},
    ],
}
SCHEMA = {
    "type": "record",
    "name": "HoodieArchivedMetaEntry",
    "namespace": "org.apache.hudi.avro.model",
    "fields": [
        {"name": "hoodieCommitMetadata", "type": ["null", COMMIT], "default": None},
        {"name": "commitTime", "type": STRING},
        {"name": "actionType", "type": STRING},
        {"name": "actionState", "type": STRING, "default": None},
        {"name": "stateTransitionTime", "type": STRING, "default": None},
    ],
}


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, Path]:
    return unpack_history(LOG, tmp_path)


@pytest.fixture
def lone(table: tuple[Path, Path]) -> tuple[Path, Path]:
    """A table whose archive is one file that the test writes."""
    path, history = table
    for file in log_files(history):
        file.unlink()
    return path, history / ".commits_.archive.1_1-0-1"


def log_files(history: Path) -> list[Path]:
    return sorted(history.glob(".commits_.archive.*"))


def entry(time: str = "20260101000000000", **fields: Any) -> dict[str, Any]:
    return {"commitTime": time, "actionType": "commit", "actionState": "COMPLETED", **fields}


def encode(record: dict[str, Any], schema: Any = SCHEMA) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
    return stream.getvalue()


def content_of(*records: bytes, version: int = 3, count: int | None = None) -> bytes:
    parts = b"".join(struct.pack(">i", len(record)) + record for record in records)
    return struct.pack(">ii", version, len(records) if count is None else count) + parts


def block(
    content: bytes, *, schema: Any = SCHEMA, version: int = 1, block_type: int = 3, length: int | None = None
) -> bytes:
    text = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
    header = struct.pack(">iii", 1, 2, len(text)) + text
    body = struct.pack(">ii", version, block_type) + header
    body += struct.pack(">q", len(content) if length is None else length) + content + struct.pack(">i", 0)
    size = len(body) + 8
    return MAGIC + struct.pack(">q", size) + body + struct.pack(">q", size + len(MAGIC))


def one(*records: dict[str, Any]) -> bytes:
    return block(content_of(*(encode(record) for record in records)))


def test_files_that_were_cut_off_are_reported(table: tuple[Path, Path]) -> None:
    path, history = table
    whole = seen(load(path))
    for file in log_files(history):
        content = file.read_bytes()
        starts = {start for start in range(1, len(content)) if content.startswith(MAGIC, start)}
        offsets = {*range(0, len(content), max(1, len(content) // 30)), len(content) - 1}
        for length in offsets - starts:
            file.write_bytes(content[:length])
            found, reasons = outcome(path)
            assert any(file.name in reason for reason in reasons), (file.name, length)
            assert found is None or set(seen(found)) < set(whole) or length > len(content) // 2
        file.write_bytes(content)
    assert seen(load(path)) == whole


def test_files_that_were_cut_off_between_blocks_are_reported_where_an_instant_is_torn(
    table: tuple[Path, Path],
) -> None:
    path, history = table
    whole = seen(load(path))
    torn = 0
    for file in log_files(history):
        content = file.read_bytes()
        for start in range(1, len(content)):
            if content.startswith(MAGIC, start):
                file.write_bytes(content[:start])
                found, reasons = outcome(path)
                assert found is not None
                missing = set(whole) - set(seen(found))
                assert missing
                # A block holds ten states: it ends with a whole instant now and then, and then nothing shows it.
                kept = {bytes(record) for block in read_blocks(content[:start], "f") for record in block.records}  # type: ignore[union-attr]
                assert bool(reasons) == (len(kept) % 3 != 0)
                torn += bool(reasons)
        file.write_bytes(content)
    assert torn


def test_damage_in_the_middle_is_skipped_up_to_the_next_block_and_reported(lone: tuple[Path, Path]) -> None:
    path, file = lone
    blocks = [one(entry(f"2026010100000000{number}")) for number in range(3)]
    for damage in (
        blocks[1][:-1],
        blocks[1][:40],
        b"x" * 50,
        blocks[1][:-8] + b"\0" * 8,
        MAGIC + b"\x7f" + b"\xff" * 30,
    ):
        file.write_bytes(blocks[0] + damage + blocks[2])
        archive = load(path)
        # Without a magic behind it, the block before the damage counts as damaged as well.
        assert {i.requested_time[-1] for i in archive.instants} >= {"2"}
        assert {problem.file_name for problem in archive.problems} == {file.name}
        assert "skipped" in archive.problems[0].reason


def test_random_damage_raises_no_strange_error(table: tuple[Path, Path]) -> None:
    path, history = table
    draw = random.Random(11)
    for file in log_files(history)[:2]:
        content = file.read_bytes()
        starts = [start for start in range(len(content)) if content.startswith(MAGIC, start)]
        # The schema, which is by far the most of a file, and what lies around it.
        places = [start + draw.randrange(60) for start in starts for _ in range(8)]
        places += draw.sample(range(len(content)), 120)
        for position in places:
            damaged = bytearray(content)
            damaged[position] = draw.randrange(256)
            file.write_bytes(damaged)
            outcome(path, with_content=True)
        file.write_bytes(content)


@pytest.mark.parametrize(("block_type", "kind"), [(0, "command"), (1, "delete"), (2, "corrupt")])
def test_blocks_without_data_are_reported(lone: tuple[Path, Path], block_type: int, kind: str) -> None:
    path, file = lone
    file.write_bytes(one(entry()) + block(b"", block_type=block_type))
    archive = load(path)
    assert len(archive.instants) == 1
    assert kind in archive.problems[0].reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (block(b"", block_type=4), "type 4"),
        (block(b"", block_type=99), "type 99"),
        (block(b"", version=0), "format 0"),
        (block(b"", version=2), "format 2"),
        (block(content_of(version=0)), "version 0"),
        (block(content_of(version=4)), "version 4"),
        (one(entry(actionType="vacuum")), "unknown action.*vacuum"),
        (one(entry(actionType=None)), "unknown action"),
        (one(entry(actionState="LOST")), "unknown action or state.*LOST"),
    ],
)
def test_what_is_not_known_is_unsupported(lone: tuple[Path, Path], content: bytes, reason: str) -> None:
    path, file = lone
    file.write_bytes(content)
    with pytest.raises(UnsupportedTableError, match=f"{file}.*{reason}"):
        load(path)


@pytest.mark.parametrize(
    "content",
    [
        block(content_of(encode(entry())[:-1])),
        block(content_of(encode(entry()) + b"x")),
        block(content_of(encode(entry())) + b"x"),
        block(content_of(count=2**31 - 1)),
        block(content_of(count=-1)),
        block(content_of(encode(entry()), count=2)),
        block(struct.pack(">iii", 3, 1, 2**31 - 1)),
        block(struct.pack(">iii", 3, 1, -5)),
        block(b"", length=2**62),
        block(b"", length=-1),
        block(b""),
        block(content_of(encode(entry())), schema=b"{"),
        block(content_of(encode(entry())), schema=b"\xff"),
        block(content_of(encode(entry())), schema=b"[" * 100_000),
        one(entry(None)),  # type: ignore[arg-type]
        one(entry("2026-01-01")),
        one(entry(stateTransitionTime="soon")),
    ],
)
def test_whole_blocks_that_contradict_themselves_are_damage(lone: tuple[Path, Path], content: bytes) -> None:
    path, file = lone
    file.write_bytes(content)
    with pytest.raises(DamagedFileError, match=str(file)):
        load(path)


@pytest.mark.parametrize("field", ["commitTime", "actionType", "actionState", "stateTransitionTime"])
def test_fields_of_another_type_are_refused(lone: tuple[Path, Path], field: str) -> None:
    path, file = lone
    numbers = {"type": "array", "items": "long"}
    fields = [
        {"name": entry["name"], "type": numbers if entry["name"] == field else entry["type"]}
        for entry in SCHEMA["fields"]  # type: ignore[attr-defined]
    ]
    schema = {**SCHEMA, "fields": fields}
    value = {"hoodieCommitMetadata": None, "stateTransitionTime": None, **entry(), field: [1]}
    file.write_bytes(block(content_of(encode(value, schema)), schema=schema))
    with pytest.raises((DamagedFileError, UnsupportedTableError), match=str(file)):
        load(path)


@pytest.mark.parametrize("size", [0, -1, 7, 2**31, 2**63 - 1, -(2**63)])
def test_sizes_of_blocks_are_not_believed(size: int) -> None:
    content = MAGIC + struct.pack(">q", size) + b"\0" * 64
    damage = next(iter(read_blocks(content, "f")))
    assert isinstance(damage, DamagedBlock)
    assert (damage.start, damage.end) == (0, len(content))


def test_damage_in_one_place_is_one_problem() -> None:
    good = one(entry())
    found = list(read_blocks(good + MAGIC * 1000 + b"x" + good, "f"))
    # The first block counts as damaged if what follows it is no block.
    assert [type(part) for part in found[-2:]] == [DamagedBlock, DataBlock]
    assert len(found) <= 3


def test_files_beyond_belief_are_refused(table: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_log, "MAX_FILE_BYTES", 100)
    with pytest.raises(DamagedFileError, match="more than an archive's file can have"):
        load(table[0])


def test_empty_file_is_reported(lone: tuple[Path, Path]) -> None:
    path, file = lone
    file.write_bytes(b"")
    assert [problem.file_name for problem in load(path).problems] == [file.name]


def test_instant_without_its_completion_is_reported(lone: tuple[Path, Path]) -> None:
    path, file = lone
    file.write_bytes(one(entry("1"), entry("2", actionState="REQUESTED"), entry("2", actionState="INFLIGHT")))
    archive = load(path)
    assert [instant.requested_time for instant in archive.instants] == ["1"]
    assert [problem.reason for problem in archive.problems] == [
        "holds the beginning of 2.commit, but no file its completion"
    ]
    assert load(path, until="1").problems == ()


def test_first_archives_had_no_states_and_no_completion_times(lone: tuple[Path, Path]) -> None:
    path, file = lone
    metadata = {"partitionToWriteStats": {"a": [{"fileId": "f1"}]}, "operationType": "INSERT"}
    file.write_bytes(one(entry("1", actionState=None, hoodieCommitMetadata=metadata)))
    instant = load(path, with_content=True).instants[0]
    assert instant.completed_time is None
    assert load_archived_commit(instant).operation == "INSERT"


def test_instants_that_were_archived_twice_are_one(table: tuple[Path, Path]) -> None:
    path, history = table
    whole = load(path, with_content=True)
    for number, file in enumerate(log_files(history), start=90):
        (history / f".commits_.archive.{number}_1-0-1").write_bytes(file.read_bytes())
    assert load(path, with_content=True) == whole


# --- small files that older versions of Hudi merge --------------------------------------------------------

PLAN = {
    "type": "record",
    "name": "HoodieMergeArchiveFilePlan",
    "fields": [
        {"name": "candidate", "type": ["null", {"type": "array", "items": "string"}]},
        {"name": "mergedArchiveFileName", "type": STRING},
    ],
}


def begin_merge(history: Path, merged: bytes) -> Path:
    sources = log_files(history)
    target = history / ".commits_.archive.99_1-0-1"
    target.write_bytes(merged)
    with (history / "mergeArchivePlan").open("wb") as stream:
        record = {"candidate": [f"file:{source}" for source in sources], "mergedArchiveFileName": target.name}
        fastavro.writer(stream, fastavro.parse_schema(PLAN), [record])
    return target


def test_merge_that_has_begun_hides_nothing(table: tuple[Path, Path]) -> None:
    path, history = table
    whole = load(path)
    merged = b"".join(file.read_bytes() for file in log_files(history))
    for length in (0, 3, len(merged) // 2, len(merged)):
        target = begin_merge(history, merged[:length])
        assert load(path) == whole
        target.unlink()


def test_merge_whose_sources_are_gone_must_be_whole(table: tuple[Path, Path]) -> None:
    path, history = table
    whole = seen(load(path))
    sources = log_files(history)
    merged = b"".join(file.read_bytes() for file in sources)
    target = begin_merge(history, merged)
    sources[0].unlink()
    assert (seen(load(path)), load(path).problems) == (whole, ())
    target.write_bytes(merged[:-5])
    assert [problem.file_name for problem in load(path).problems] == [target.name]


@pytest.mark.parametrize("plan", [b"Obj\x01", b"{}", b'{"candidate": 1, "mergedArchiveFileName": "a"}', b"", b"x"])
def test_damaged_merge_plan_is_reported(table: tuple[Path, Path], plan: bytes) -> None:
    path, history = table
    whole = seen(load(path))
    (history / "mergeArchivePlan").write_bytes(plan)
    archive = load(path)
    assert seen(archive) == whole
    assert [problem.file_name for problem in archive.problems] == ["mergeArchivePlan"]


def test_file_that_is_merged_while_it_is_read_is_searched_again(
    table: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, history = table
    whole = seen(load(path))
    last = log_files(history)[-1]

    def merge(name: str) -> None:
        if name == last.name and last.exists():
            last.rename(history / ".commits_.archive.77_1-0-1")

    before_reads(monkeypatch, merge)
    assert seen(load(path)) == whole


# --- schemas that are no schemas of Hudi's ----------------------------------------------------------------


def record(name: str, *types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def doubling(levels: int) -> dict[str, Any]:
    inner: Any = record("r0", "null")
    for level in range(1, levels):
        inner = record(f"r{level}", inner, f"r{level - 1}")
    return inner  # type: ignore[no-any-return]


def nested(levels: int) -> Any:
    inner: Any = "int"
    for _ in range(levels):
        inner = {"type": "array", "items": inner}
    return inner


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record("a", "a"), "contains itself"),
        (record("a", ["null", "a"]), "contains itself"),
        (record("a", {"type": "map", "values": "org.a"}), "contains itself"),
        (record("a", {"type": "array", "items": "null"}), "without size"),
        (record("a", {"type": "array", "items": record("b")}), "without size"),
        (record("a", {"type": "array", "items": {"type": "fixed", "name": "x", "size": 0}}), "without size"),
        (doubling(40), "types"),
        (record("a", nested(70)), "deeper"),
        (record("a", "b"), "unknown type"),
        (record("a", record("b", "int"), record("b", "int")), "two types"),
        ({"type": "string"}, "record"),
        ([], "record"),
    ],
)
def test_schemas_that_could_exhaust_the_process_are_refused(lone: tuple[Path, Path], schema: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_schema(schema)
    path, file = lone
    file.write_bytes(block(content_of(b"\x02" * 2_000_000), schema=schema))
    with pytest.raises(DamagedFileError, match=reason):
        load(path)


def test_schemas_of_hudi_are_accepted(table: tuple[Path, Path]) -> None:
    for file in log_files(table[1]):
        for found in read_blocks(file.read_bytes(), "f"):
            assert isinstance(found, DataBlock)
            check_schema(json.loads(found.schema))
