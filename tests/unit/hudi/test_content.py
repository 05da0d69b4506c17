from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Iterator

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi.commit_metadata import AVRO_MAGIC, decode
from tests.support.fixture_tables import FOLDER


def files_of_each_kind(table: str) -> Iterator[tuple[str, bytes]]:
    """Yield one file with content of each action and state of a real table."""
    seen = set()
    with zipfile.ZipFile(FOLDER / f"{table}.zip") as archive:
        for path in sorted(archive.namelist()):
            name = path.rpartition("/")[2]
            kind = name.partition(".")[2]
            content = archive.read(path)
            if name[0].isdigit() and not name.endswith(".parquet") and content and kind not in seen:
                seen.add(kind)
                yield name, content


FILES = [
    pytest.param(name, content, id=f"{table}-{name.partition('.')[2]}")
    for table in ("mor_v9", "mor_v6", "cow_v9")
    for name, content in files_of_each_kind(table)
]
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


def test_decode_of_a_schema_that_contains_itself_is_refused() -> None:
    """The decoder's C code would recurse until the process dies."""
    import io

    import fastavro

    schema = {"type": "record", "name": "a", "fields": [{"name": "x", "type": ["null", "a"]}]}
    stream = io.BytesIO()
    fastavro.writer(stream, fastavro.parse_schema(schema), [{"x": {"x": None}}])
    with pytest.raises(DamagedFileError, match="contains itself"):
        decode(stream.getvalue(), "20260101000000000.deltacommit")
