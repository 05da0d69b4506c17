"""Records of log files that this process merges: which one wins, and what it leaves to Spark."""

from __future__ import annotations

import json
import struct
import time
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from lake_jobs.replication.file_slices import DataFile
from lake_jobs.replication.log_records import (
    META_FIELDS,
    LogFiles,
    LogRecord,
    NotAlikeError,
    in_order,
    merge_records,
    wins_over_base,
)
from tests.support.patience import patient

INSTANT = "20260301100000000"
LOG = DataFile(f".f1_{INSTANT}.log.1_0-1-2", "f1", INSTANT, is_log=True)
PRICE = {"type": "fixed", "name": "price", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 10}
DATA = [
    {"name": "id", "type": ["null", "long"]},
    {"name": "ts", "type": "long"},
    {"name": "price", "type": ["null", PRICE], "default": None},
    {"name": "ratio", "type": ["double", "null"]},
    {"name": "even", "type": "boolean"},
]
META = [{"name": name, "type": ["null", "string"], "default": None} for name in META_FIELDS]


def schema_of(fields: list[Any]) -> str:
    return json.dumps({"type": "record", "name": "row", "fields": fields})


SCHEMA = schema_of([*META, *DATA])
ROWS = [
    {"_hoodie_commit_time": INSTANT, "_hoodie_record_key": str(at), "id": at, "ts": at - 2, "even": at % 2 == 0}
    | {"price": None if at % 3 == 0 else Decimal(at - 2) / 8, "ratio": None if at == 1 else at / 7}
    for at in range(300)
]


def encode(rows: list[dict[str, Any]], schema: str = SCHEMA) -> bytes:
    """Encode rows by another implementation of Avro, as a data block has them."""
    import io

    parsed, records = fastavro.parse_schema(json.loads(schema)), b""
    for row in rows:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, row)
        records += struct.pack(">i", len(stream.getvalue())) + stream.getvalue()
    return struct.pack(">ii", 3, len(rows)) + records


def block(kind: int, content: bytes, header: dict[int, str] | None = None) -> bytes:
    entries = {0: INSTANT, 2: SCHEMA, **(header or {})}
    texts = b"".join(struct.pack(">ii", key, len(text)) + text.encode() for key, text in entries.items())
    body = struct.pack(">iii", 1, kind, len(entries)) + texts
    body += struct.pack(">q", len(content)) + content + struct.pack(">i", 0)
    return b"#HUDI#" + struct.pack(">q", len(body) + 8) + body + struct.pack(">q", len(body) + 14)


def deletes(*records: bytes) -> bytes:
    content = bytes([2 * len(records)]) + b"".join(records) + b"\0" if records else b"\0"
    return struct.pack(">ii", 3, len(content)) + content


def delete(key: str, order: bytes) -> bytes:
    return b"\x02" + bytes([2 * len(key)]) + key.encode() + b"\x02\x02p" + order


NO_VALUE, ZERO, LONG_SEVEN = b"\0", b"\x04\0", b"\x06\x0e"


def read(content: bytes, keys: set[str] | None = None, ordering: str = "ts", schema: str = SCHEMA) -> list[LogRecord]:
    return LogFiles(lambda _: content, ordering).records("p", LOG, schema, keys)


def test_rows_are_decoded_as_another_implementation_encoded_them() -> None:
    found = read(block(3, encode(ROWS[:5])) + block(3, encode(ROWS[5:])))
    assert [record.key for record in found] == [str(at) for at in range(300)]
    assert [record.order for record in found] == [at - 2 for at in range(300)]
    assert [
        {name: row[name] for name in ("id", "price", "ratio", "even")} for row in (r.row for r in found) if row
    ] == [{name: row[name] for name in ("id", "price", "ratio", "even")} for row in ROWS]
    assert [record.key for record in read(block(3, encode(ROWS)), {"7", "8"})] == ["7", "8"]


def test_deletes_are_read_with_their_ordering_values() -> None:
    content = block(1, deletes(delete("a", ZERO), delete("b", LONG_SEVEN)))
    assert read(content) == [LogRecord("a", always_wins=True), LogRecord("b", 7)]
    assert read(content, {"b"}) == [LogRecord("b", 7)]
    assert read(block(1, deletes(delete("a", NO_VALUE))), ordering="") == [LogRecord("a")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(block(0, b"\0" * 8), "type 0", id="rollback"),
        pytest.param(block(5, b"\0" * 8), "type 5", id="parquet"),
        pytest.param(block(6, b"\0" * 8), "type 6", id="change-data"),
        pytest.param(block(3, encode(ROWS[:1]), {4: "1,2"}), "headers", id="compacted"),
        pytest.param(block(3, encode(ROWS[:1]), {7: "true"}), "headers", id="parts-of-rows"),
        pytest.param(block(3, encode(ROWS[:1]), {0: "20260301100000001"}), "a block of 2026", id="of-another-commit"),
        pytest.param(block(3, encode(ROWS[:1]))[:-1], "log file", id="cut-off"),
        pytest.param(block(3, encode(ROWS[:1])) + b"#HUDI#", "log file", id="unfinished"),
        pytest.param(block(3, encode(ROWS[:1]) + b"x"), "behind the last record", id="too-long"),
        pytest.param(block(3, encode([{**ROWS[0], "_hoodie_record_key": None}])), "without a record key", id="no-key"),
        pytest.param(block(1, deletes(delete("a", NO_VALUE))), "type 0", id="delete-without-value"),
        pytest.param(block(1, deletes(delete("a", b"\x04\x0e"))), "type 2", id="delete-of-another-type"),
        pytest.param(block(1, deletes(delete("a", b"\x0e\x02x"))), "type 7", id="delete-with-a-text"),
        pytest.param(block(1, b"\0\0\0\2" + deletes()[4:]), "another version", id="delete-of-java"),
        pytest.param(block(3, encode(ROWS[:1]), {2: "[" * 100_000}), "RecursionError", id="deep-schema"),
    ],
)
def test_what_is_not_plain_is_left_to_spark(content: bytes, said: str) -> None:
    with pytest.raises(NotAlikeError, match=said):
        read(content)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([*META, *DATA[:-1]], id="a-column-less"),
        pytest.param([*META, *DATA[:-1], {"name": "even", "type": "string"}], id="another-type"),
        pytest.param([*META, *DATA, {"name": "_hoodie_is_deleted", "type": "boolean"}], id="marks-deletes"),
        pytest.param([*META, {"name": "_hoodie_operation", "type": "string"}, *DATA], id="operation"),
    ],
)
def test_rows_of_another_schema_are_left_to_spark(fields: list[Any]) -> None:
    with pytest.raises(NotAlikeError):
        read(block(3, encode([]), {2: schema_of(fields)}))


def test_the_higher_ordering_value_wins_and_of_two_the_later_one() -> None:
    low, high, again = (LogRecord("k", order, {"n": at}) for at, order in enumerate((3, 5, 5)))
    assert merge_records([low, high])["k"] is high
    assert merge_records([high, low])["k"] is high
    assert merge_records([high, again])["k"] is again
    assert [wins_over_base(record, 5) for record in (low, high)] == [False, True]
    with pytest.raises(NotAlikeError):
        wins_over_base(high, None)


def test_a_delete_wins_by_its_ordering_value_and_one_without_always() -> None:
    row, late, gone, always = (
        LogRecord("k", 5, {}),
        LogRecord("k", 1, {}),
        LogRecord("k", 4),
        LogRecord("k", 0, None, True),
    )
    assert merge_records([row, gone])["k"] is row
    assert merge_records([gone, late])["k"] is gone
    assert merge_records([row, always])["k"] is always
    assert merge_records([row, always, late])["k"] is late
    # It stays the first one's, so what comes behind it wins.
    assert merge_records([always, gone, late])["k"] is late
    assert wins_over_base(always, 9)
    assert not wins_over_base(late, 9)


def test_log_files_are_merged_by_instant_number_and_token() -> None:
    names = [f".f1_{instant}.log.{rest}" for instant in "12" for rest in ("2_0-1-2", "10_0-1-2", "10_0-1-3")]
    logs = [DataFile(name, "f1", name[4], is_log=True) for name in names]
    assert in_order(reversed(logs)) == logs


def test_hostile_lengths_cost_no_time() -> None:
    """Lengths that lead back would read the same bytes two thousand million times, and ever longer numbers for days."""
    many = 2**31 - 1
    back = struct.pack(">iii", 1, 3, many) + struct.pack(">ii", 0, -8) * 2
    endless = deletes(b"\x02" + b"\xff" * 2_000_000)
    hostile = [
        b"#HUDI#" + struct.pack(">q", len(back) + 16) + back + struct.pack(">qq", 0, len(back) + 22),
        block(3, struct.pack(">ii", 3, many) + struct.pack(">i", -4) * 8),
        block(3, struct.pack(">ii", 3, many) + struct.pack(">i", -12) * 8),
        block(1, endless),
        block(1, struct.pack(">ii", 3, 12) + b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\0\0"),
        b"#HUDI#" + struct.pack(">q", -(2**62)) + b"\0" * 64,
        block(2, b"x" * 64)[:40],
    ]
    for content in hostile:
        began_s = time.process_time()
        with pytest.raises(NotAlikeError):
            read(content)
        assert time.process_time() - began_s < patient(0.5)
