"""Damage of any kind in real tables: a reader raises an error of ours, soon, and takes little memory.

The cases come out of one seed each. `LAKE_CASES` sets how many are tried: 1,000 without it, 100,000 with `-m soak`.
"""

from __future__ import annotations

import json
import os
import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.archive import load_archive, load_archived_commit
from airflow_lake_provider.hudi.commit_metadata import find_damaged_files, parse_commit_metadata
from airflow_lake_provider.hudi.pending import load_pending_plans, read_effect, resolve_clusterings
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_head import SPARK_SINK_KEY
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from tests.support.content_files import hand_made, number, record, sized
from tests.support.fixture_tables import NAMES, unpack
from tests.support.patience import patient

MAX_CPU_S = 2.0
"""For a whole table, which has some 60 files, on a busy machine; a hang of the kind that is searched for has no end."""
MAX_GROWTH_BYTES = 96 * 1024 * 1024
ODD_TEXTS = (
    b'""',
    b"null",
    b"-1",
    b"1e999",
    b"9" * 400,
    b'"\\u0000"',
    b'"\\ud800"',
    b"[]",
    b"{}",
    b"[[[[]]]]",
    b"true",
)


# --- Damage: each takes a file's content, and returns another one


def flip(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content or b"x")
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randint(0, len(content))]


def repeat(content: bytes, chance: random.Random) -> bytes:
    begin, end = sorted((chance.randint(0, len(content)), chance.randint(0, len(content))))
    return content[:end] + content[begin:end] * chance.randint(1, 50) + content[end:]


def splice(content: bytes, chance: random.Random) -> bytes:
    at = chance.randint(0, len(content))
    put = chance.choice((b"\xff" * 20, b"\x80" * 12, number(1 << 40), number(-(1 << 40)), b"\0" * 99))
    return content[:at] + put + content[at:]


def retype(content: bytes, chance: random.Random) -> bytes:
    """Put another value in the place of one in JSON: the format is right, and the types are wrong."""
    colons = [at for at, byte in enumerate(content) if byte == ord(":")]
    if not content.lstrip().startswith(b"{") or not colons:
        return flip(content, chance)
    at = chance.choice(colons) + 1
    ends = [end for mark in b",}]" if (end := content.find(bytes([mark]), at)) >= 0]
    return content[:at] + chance.choice(ODD_TEXTS) + content[min(ends, default=len(content)) :]


def odd_json(_: bytes, chance: random.Random) -> bytes:
    """Return commit metadata, plans and cleans whose fields have odd values."""
    odd = [None, -1, 10**30, 1.5, float("inf"), "", "\0", "\ud800", [], {}, [[]], [None], {"a": None}, True, ["x", {}]]
    names = ("partitionToWriteStats", "partitionToReplaceFileIds", "operationType", "clusteringPlan", "operations",
             "indexPartitionInfos", "totalFilesDeleted", "extraMetadata", "inputGroups", "files")  # fmt: skip

    def stat() -> object:
        keys = ("fileId", "path", "prevCommit", "totalWriteBytes", "fileSizeInBytes", "prevBaseFile", "partitionPath",
                "numWrites", "totalLogFilesCompacted", "deltaFilePaths", "dataFilePath", "slices")  # fmt: skip
        return {key: chance.choice(odd) for key in chance.sample(keys, chance.randint(0, len(keys)))}

    def value() -> object:
        return chance.choice((chance.choice(odd), {"p": [stat(), stat()]}, [stat()], {"inputGroups": [stat()]}))

    return json.dumps({name: value() for name in chance.sample(names, chance.randint(1, len(names)))}).encode()


def deep_json(_: bytes, chance: random.Random) -> bytes:
    return chance.choice((b'{"a":' * 50_000, b'{"a":' + b"[" * 50_000, b'{"a":' * 800 + b"1" + b"}" * 800))


def avro_bomb(_: bytes, chance: random.Random) -> bytes:
    fixed = {"type": "fixed", "name": "f", "size": chance.choice((0, -1, 1 << 40))}
    nulls = {"type": "array", "items": {"type": "record", "name": "e", "fields": [{"name": "n", "type": "null"}]}}
    many = {"type": "array", "items": "boolean"}
    schema, block = chance.choice(
        (
            (record(), b""),
            (record("null"), b""),
            (record(fixed), b""),
            (record(nulls), number(1 << 40)),
            (record(many), number(1 << 40)),
            (record("bytes"), number(1 << 40)),
            (record({"type": "map", "values": "int"}), number(-(1 << 40)) + number(3)),
            (record({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 3}), sized(b"\x7f" * 50_000)),
            (b'{"type":' * 20_000, b""),
        )
    )
    return hand_made(schema, chance.choice((1, 2, 0, -1, 1 << 40)), block)


def properties_bomb(content: bytes, chance: random.Random) -> bytes:
    key = chance.choice((b"hoodie.table.name", b"hoodie.timeline.path", b"hoodie.table.version", b"hoodie.x"))
    value = chance.choice((b"\\u0000", b"\\ud800", b"../../x", b"9" * 5000, b"x" * 300_000, b"\xff\xfe", b""))
    return content + b"\n" + key + b"=" + value + b"\n"


DAMAGES: list[Callable[[bytes, random.Random], bytes]] = [
    *(flip, cut, repeat, splice, retype, odd_json, deep_json, avro_bomb, properties_bomb),
]


# --- A file that is none: in the place of one of the table's


def place(file: Path, content: bytes, chance: random.Random) -> Callable[[], None]:
    """Write the file, or rarely something else under its name; return what puts it right."""
    kind = chance.choice(("file",) * 20 + ("pipe", "zero", "link", "sparse", "folder"))
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind in ("zero", "link"):
        file.symlink_to("/dev/zero" if kind == "zero" else "/proc/self/environ")
    elif kind == "folder":
        file.mkdir()
    else:
        file.write_bytes(content if kind == "file" else b"")
        if kind == "sparse":
            os.truncate(file, chance.choice((1 << 20, 1 << 33)))
    return file.rmdir if kind == "folder" else file.unlink


# --- Everything that the manager, its tasks and its pages read of a table


def read_all(table: Path, file: Path) -> None:
    """Read all that a file is a part of."""
    is_archive = file.parent.name in ("archived", "history")
    for read in (_read_archive,) if is_archive else (_read_view, _read_effects, _read_timeline):
        with suppress(LakeError, FileNotFoundError):  # anything else fails the test
            read(str(table))


def _read_timeline(path: str) -> None:
    storage = open_storage(path)
    properties = load_table_properties(storage)
    timeline = resolve_clusterings(storage, properties, load_timeline(storage, properties))
    find_damaged_files(storage, properties, timeline)
    load_pending_plans(storage, properties, timeline)


def _read_archive(path: str) -> None:
    storage = open_storage(path)
    archive = load_archive(storage, load_table_properties(storage), with_content=True)
    for instant in archive.instants:
        if instant.action in (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT):
            load_archived_commit(instant)


def _read_effects(path: str) -> None:
    storage = open_storage(path)
    timeline = load_timeline(storage, load_table_properties(storage))
    read_effect(storage, [instant.requested_time for instant in timeline.completed()])


def _read_view(path: str) -> None:
    facts = TableFacts(TableViewCache(SharedTimelines(open_table=open_storage)).refresh(path))
    assert facts.backlog.log_bytes < 1 << 63, "it fits into the database"
    assert facts.held_commits >= 0
    assert all(isinstance(file_id, str) for file_id in facts.newest_file_ids)


@contextmanager
def measured(case: int) -> Iterator[None]:
    before_bytes, began_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, time.process_time()
    yield
    assert time.process_time() - began_s < patient(MAX_CPU_S), f"case {case}"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before_bytes < MAX_GROWTH_BYTES, f"case {case}"


def run_cases(folder: Path, cases: range) -> None:
    tables = [unpack(name, folder / name).path for name in NAMES]
    files = [[file for file in sorted(table.rglob("*")) if file.is_file()] for table in tables]
    for table in tables:
        for file in (table, table / "archived" / "x"):
            read_all(table, file)
    for case in cases:
        chance = random.Random(case)
        at = chance.randrange(len(tables))
        file = chance.choice(files[at])
        content, times = file.read_bytes(), file.stat()
        undo = place(file, chance.choice(DAMAGES)(content, chance), chance)
        try:
            with measured(case):
                read_all(tables[at], file)
        except BaseException as error:
            raise AssertionError(f"case {case}: {file}: {error!r}") from error
        undo()
        file.write_bytes(content)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_damage_of_any_file_raises_an_error_of_ours_and_costs_little(tmp_path: Path) -> None:
    run_cases(tmp_path, range(int(os.environ.get("LAKE_CASES", "1000"))))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_damage_of_many_files_raises_errors_of_ours(tmp_path: Path, part: int) -> None:
    run_cases(tmp_path, range(1000 + part * 5000, 1000 + (part + 1) * 5000))


@pytest.mark.parametrize("key", ["schema", SPARK_SINK_KEY])
def test_large_text_within_a_commit_is_not_read_as_json(key: str) -> None:
    text = '{"fields":[' + "{}," * 7_000_000 + "{}]}"
    begun_s = time.process_time()
    commits = [parse_commit_metadata({"extraMetadata": {key: text + end}}, "x.commit") for end in ("", " ")]
    assert time.process_time() - begun_s < patient(3)
    assert (commits[0].columns != commits[1].columns) is (key == "schema")
    assert sum(len(commit.columns) + commit.memory_bytes for commit in commits) < 1_000
