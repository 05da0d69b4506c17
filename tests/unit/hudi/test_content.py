from __future__ import annotations

import contextlib
import io
import time

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi.commit_metadata import parse_commit_metadata
from airflow_lake_provider.hudi.file_content import AVRO_MAGIC, decode
from tests.support.content_files import FILES, hand_made, number, record, sized
from tests.support.patience import patient

AVRO = {param.id: param.values[1] for param in FILES if bytes(param.values[1]).startswith(AVRO_MAGIC)}


@pytest.mark.parametrize(("name", "content"), FILES)
def test_decode_of_a_file_cut_at_every_tenth_byte_names_the_file(name: str, content: bytes) -> None:
    assert decode(content, name)
    # A cut inside the trailing white space of JSON would leave it whole; Hudi writes none.
    for length in {*range(10, len(content), 10), 1, 2, 3, len(content) - 1}:
        with pytest.raises(DamagedFileError, match=name):
            decode(content[:length], name)


@given(st.sampled_from(sorted(AVRO)), st.data())
def test_decode_of_a_file_with_flipped_bytes_gives_a_record_or_names_the_file(kind: str, data: st.DataObject) -> None:
    content = bytearray(AVRO[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(len(AVRO_MAGIC), len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DamagedFileError):  # anything else that it raises fails this test
        assert isinstance(decode(bytes(content), "1.commit"), dict)


def test_decode_of_an_empty_file_is_none() -> None:
    assert decode(b"", "1.commit.requested") is None


def container(*records: object, schema: object, codec: str = "null") -> bytes:
    stream = io.BytesIO()
    fastavro.writer(stream, schema, records, codec=codec)
    return stream.getvalue()


def with_damaged_block(codec: str) -> bytes:
    """Return a container whose header promises a codec, and whose one block is none of it."""
    plain = container({"a": "x" * 99}, schema={"type": "map", "values": "string"})
    # Avro writes lengths as zigzag numbers; these are below 64.
    renamed = plain.replace(b"\x08null", bytes([2 * len(codec)]) + codec.encode())
    sync = renamed[-16:]
    block = renamed.index(sync) + len(sync) + 3  # one byte of count, two of length
    return renamed[:block] + b"\xff" * (len(renamed) - block - len(sync)) + sync


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"garbage", id="neither-format"),
        pytest.param(b"[]", id="json-but-no-object"),
        pytest.param(b'{"a": 1} {"b": 2}', id="two-json-objects"),
        pytest.param(b'{"a":' * 100_000, id="json-nested-beyond-the-stack"),
        pytest.param(b'{"a": "\xff"}', id="json-that-is-no-utf-8"),
        pytest.param(container(schema="int"), id="container-without-record"),
        pytest.param(container(1, schema="int"), id="record-that-is-no-record"),
        pytest.param(
            container({}, {}, schema={"type": "record", "name": "r", "fields": []}),
            id="two-records",
        ),
        pytest.param(container(1, schema="int").replace(b"null", b"zzzz"), id="unknown-codec"),
        pytest.param(with_damaged_block("deflate"), id="damaged-deflate"),
        pytest.param(with_damaged_block("bzip2"), id="damaged-bzip2"),
        pytest.param(with_damaged_block("xz"), id="damaged-xz"),
        pytest.param(with_damaged_block("snappy"), id="damaged-snappy-or-no-library"),
        pytest.param(with_damaged_block("zstandard"), id="damaged-zstandard-or-no-library"),
    ],
)
def test_decode_of_what_no_writer_writes_names_the_file(content: bytes) -> None:
    with pytest.raises(DamagedFileError, match=r"1_2\.commit"):
        decode(content, "1_2.commit")


ITSELF = {"type": "record", "name": "a", "fields": [{"name": "x", "type": ["null", "a"]}]}
EMPTY = {"type": "fixed", "name": "f", "size": 0}
NEGATIVE = {"type": "fixed", "name": "f", "size": -1}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(hand_made(record(), 1 << 40, b""), "records without size", id="2^40-records-without-fields"),
        pytest.param(hand_made(record("null"), 1 << 40, b""), "records without size", id="2^40-records-of-null"),
        pytest.param(hand_made(record(EMPTY), 1 << 40, b""), "records without size", id="2^40-records-of-no-bytes"),
        pytest.param(hand_made(record(NEGATIVE, "int"), 1, b"\x02"), "negative size", id="fixed-of-negative-size"),
        pytest.param(hand_made(record("int"), 1 << 40, b"\x02"), "expected one record", id="2^40-records-announced"),
        pytest.param(hand_made(record("int"), 2, b"\x02\x02"), "expected one record", id="two-records"),
        pytest.param(hand_made(record("int"), -1, b"\x02"), "expected one record", id="minus-one-record"),
        pytest.param(hand_made(record("int"), 1, b"\x02\x02"), "1 bytes after it", id="record-that-ends-early"),
        pytest.param(hand_made(record("int"), 1, b"\x02") * 2, "follow it", id="two-containers"),
        pytest.param(hand_made(record("bytes"), 1, number(1 << 40)), "damaged Avro record", id="text-of-2^40-bytes"),
        pytest.param(hand_made(ITSELF, 1, b"\x00"), "contains itself", id="schema-within-itself"),
        pytest.param(hand_made(b'{"a":' * 50_000, 1, b""), "damaged schema", id="schema-beyond-the-stack"),
        pytest.param(hand_made(b" " * 600_000, 1, b""), "a schema of 600000 bytes", id="schema-of-600-KB"),
        pytest.param(AVRO_MAGIC + number(-(1 << 40)) + number(5), "entries", id="header-of-2^40-entries"),
        pytest.param(AVRO_MAGIC + b"\xff" * 20, "more than ten bytes", id="number-without-end"),
    ],
)
def test_container_that_promises_more_than_its_bytes_is_refused_at_once(content: bytes, reason: str) -> None:
    """A decoder that believes the count holds the interpreter's lock for hours, and no time-out ends it."""
    began_s = time.process_time()
    with pytest.raises(DamagedFileError, match=rf"20260101000000000\.deltacommit.*{reason}"):
        decode(content, "20260101000000000.deltacommit")
    assert time.process_time() - began_s < patient(0.5)


def test_numbers_with_a_logical_type_stay_plain_numbers() -> None:
    """A decimal of many bytes would take a time that grows with the square of their number."""
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 3}
    assert decode(hand_made(record(decimal), 1, sized(b"\x7f" * 100_000)), "1.commit") == {"f0": b"\x7f" * 100_000}


@pytest.mark.parametrize(
    "stat",
    [
        {"totalWriteBytes": float("inf")},
        {"fileSizeInBytes": 10**30},
        {"fileSizeInBytes": "many"},
        {"fileId": "a\0b"},
        {"fileId": ["a"]},
        {"path": ["a"]},
        ["no", "stat"],
    ],
)
def test_stat_of_a_file_that_no_writer_writes_names_the_commit(stat: object) -> None:
    with pytest.raises(DamagedFileError, match=r"1_2\.commit: not commit metadata"):
        parse_commit_metadata({"partitionToWriteStats": {"p": [stat]}}, "1_2.commit")


def test_replaced_file_group_that_is_no_name_names_the_commit() -> None:
    with pytest.raises(DamagedFileError, match=r"1_2\.commit: not commit metadata"):
        parse_commit_metadata({"partitionToReplaceFileIds": {"p": [["unhashable"]]}}, "1_2.commit")
