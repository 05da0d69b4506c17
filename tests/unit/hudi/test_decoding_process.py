"""Large timeline files, which a process of its own decodes: the same facts, and a bound on what hostile ones cost."""

from __future__ import annotations

import json
import resource
import time
from typing import Any

import pytest

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi import decoding_process
from airflow_lake_provider.hudi.commit_metadata import parse_commit_metadata
from airflow_lake_provider.hudi.decoding_process import decode_apart
from airflow_lake_provider.hudi.file_content import MAX_MEMORY_HERE_BYTES, decode, decode_here
from airflow_lake_provider.hudi.pending import parse_clustering_plan, parse_compaction_plan
from local_stack.processes import PATIENCE
from tests.support.content_files import FILES


def large_commit(files: int) -> dict[str, Any]:
    stats = [
        {"fileId": f"{n:032}-0", "path": f"d=1/{n:032}-0_1-2-3_20261121120000000.parquet", "prevCommit": "null",
         "totalWriteBytes": n, "fileSizeInBytes": n, "numWrites": n, "columnStats": {"unread": [1] * 10}}
        for n in range(files)
    ]  # fmt: skip
    replaced = {"d=1": ["old-0", "old-1"], "d=2": []}
    return {"operationType": "UPSERT", "partitionToWriteStats": {"d=1": stats, "d=2": []},
            "partitionToReplaceFileIds": replaced, "extraMetadata": {"schema": "{}"}}  # fmt: skip


@pytest.mark.parametrize(("name", "content"), FILES)
def test_process_gives_the_facts_that_this_one_gives(name: str, content: bytes) -> None:
    here, apart = decode_here(content, name), decode_apart(content, name)
    assert here is not None
    assert parse_commit_metadata(apart, name) == parse_commit_metadata(here, name)
    for parse in (parse_compaction_plan, parse_clustering_plan):
        assert parse(apart, name) == parse(here, name)
    assert {key: apart.get(key) for key in here if not isinstance(here[key], (dict, list))} == {
        key: value for key, value in here.items() if not isinstance(value, (dict, list))
    }


def test_large_commit_is_decoded_in_the_process_and_loses_no_file() -> None:
    content = json.dumps(large_commit(8000)).encode()
    assert len(content) * 32 > MAX_MEMORY_HERE_BYTES
    record = decode(content, "1.commit")
    assert record is not None
    assert "columnStats" not in record["partitionToWriteStats"]["d=1"][0]
    assert parse_commit_metadata(record, "1.commit") == parse_commit_metadata(json.loads(content), "1.commit")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b'{"partitionToWriteStats":{"a":[' + b"{}," * 800_000 + b"{}]}}", id="objects-of-two-bytes"),
        pytest.param(b'{"a":[' + b"[]," * 800_000 + b"[]]}", id="lists-of-two-bytes"),
        pytest.param(b'{"a":' * 700_000, id="deeper-than-the-stack"),
        pytest.param(b'{"a":"' + b"x" * 3_000_000, id="cut-off"),
    ],
)
def test_hostile_large_file_costs_this_process_little(content: bytes) -> None:
    decode_apart(b'{"a": 1}', "warm")  # the process is up
    before_bytes, costs_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, []
    # The cheapest of three: where memory is short, a thread's time is mostly the kernel's.
    for _ in range(3):
        began_s = time.thread_time()
        with pytest.raises(DamagedFileError, match=r"1\.commit"):
            decode(content, "1.commit")
        costs_s.append(time.thread_time() - began_s)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before_bytes < 64 * 1024 * 1024
    assert min(costs_s) < 0.25 + 0.25 * PATIENCE


def test_file_that_takes_too_long_ends_the_process_and_not_the_next_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_process, "BASE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(decoding_process, "BYTES_PER_S", 1e12)
    with pytest.raises(DamagedFileError, match=r"slow\.commit: its 13000008 bytes take more than 0 s"):
        decode_apart(b'{"a":[' + b"1.5,1,1,1,1,2" * 1_000_000 + b"1]", "slow.commit")
    monkeypatch.undo()
    assert decode_apart(b'{"a": 1}', "1.commit") == {"a": 1}
