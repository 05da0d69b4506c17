"""Many markers at once: Arrow splits the lines, and fingerprints show which of them to compare.

Python's own objects for 150,000 keys take longer to make and to compare than a whole check may. So lines of the usual
shape (base files with Hudi's file ids, under one number of underscores) stay in Arrow's columns, and only keys whose
fingerprint is one of the searched ones become objects and are compared. All other lines are for `parse_marker_file`.

Arrow with NumPy takes a third of a second of CPU to import, which a task with few markers need not pay: the reader of
markers imports this file when it meets many.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar
from weakref import ref

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from airflow_lake_provider.hudi.active_writes import KIND

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLOCK_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_TOKEN_BYTES = b"-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LAST_COLUMN = re.compile(rb"\d+\.(?!log\.)[a-z]+" + KIND)
_ID_BYTES = 32
"""The last bytes of a key, of which the fingerprint is made: of Hudi's file ids almost the whole UUID."""
_MIX = 0x9E3779B97F4A7C15
_MAX_BITS = 24


@dataclass(frozen=True, slots=True, eq=False)
class MarkerScan:
    """The markers of some files, all of the usual shape. Not empty."""

    columns: tuple[pa.ChunkedArray, ...]
    """The parts of each key between its underscores."""
    fingerprints: tuple[pa.UInt64Array, ...]
    """Of each key, by chunk of the columns."""
    _answer: list[tuple[frozenset[bytes], frozenset[bytes]]] = field(default_factory=list, repr=False)
    """The last search and what it found: several files share one scan, and each asks it."""

    def find_shared(self, asked: frozenset[bytes]) -> frozenset[bytes]:
        """Return which of the asked file groups have a marker here."""
        if self._answer and self._answer[0][0] is asked:
            return self._answer[0][1]
        found: list[bytes] = []
        table = FileGroupFilter.of(asked)
        for number, fingerprints in enumerate(self.fingerprints):
            rows = table.find_rows(fingerprints)
            if len(rows):
                parts = [column.chunk(number).take(rows).to_pylist() for column in self.columns]
                found += map(b"_".join, zip(*parts, strict=True))
        shared = asked.intersection(found)
        self._answer[:] = [(asked, shared)]
        return shared


class FileGroupFilter:
    """File groups (keys) that are searched for among many markers: which values the first bits of their fingerprints
    have. Few other keys pass, and none that is asked for fails.
    """

    _made: ClassVar[dict[int, tuple[ref[frozenset[bytes]], FileGroupFilter]]] = {}

    @classmethod
    def of(cls, keys: frozenset[bytes]) -> FileGroupFilter:
        """Return the one of these keys. It is made once, for as long as the keys live."""
        # By identity: that two sets are equal takes as long to see as all the rest.
        number = id(keys)
        holder, made = cls._made.get(number, (None, None))
        if holder is None or made is None or holder() is not keys:
            made = cls(keys)
            cls._made[number] = ref(keys, lambda _: cls._made.pop(number, None)), made
        return made

    def __init__(self, keys: frozenset[bytes]) -> None:
        ids = pa.array(list(keys), pa.binary())
        ids = ids.filter(pc.greater_equal(pc.binary_length(ids), _ID_BYTES))
        fingerprints = _fingerprint(ids)
        self._bits = pa.scalar(64 - min(_MAX_BITS, max(8, len(ids).bit_length() + 4)), pa.uint64())
        table = bytearray(1 << (64 - self._bits.as_py()))
        for place in self._places(fingerprints).to_pylist():
            table[place] = 1
        self._table = pa.Array.from_buffers(pa.uint8(), len(table), [None, pa.py_buffer(bytes(table))])

    def find_rows(self, fingerprints: pa.UInt64Array) -> pa.UInt64Array:
        """Return the positions of the fingerprints that may be those of a key."""
        return pc.indices_nonzero(pc.take(self._table, self._places(fingerprints), boundscheck=False))

    def _places(self, fingerprints: pa.UInt64Array) -> pa.UInt64Array:
        return pc.shift_right(_mix(fingerprints), self._bits)


def scan_marker_files(contents: Sequence[bytes]) -> MarkerScan | None:
    """Return the markers in some `MARKERS<n>` files, or None when there is no file or a line has another shape.

    What it returns holds what `parse_marker_file` finds in each file, all of them whole.
    """
    if not contents or not all(content.endswith(b"\n") for content in contents):
        return None
    content = b"".join(contents)
    # Arrow ends lines at these as well, and leaves that one out.
    if b"\r" in content or content.startswith(_BOM):
        return None
    count = content.count(b"_", 0, content.index(b"\n")) + 1
    if count < 3:
        return None
    try:
        columns = _split_lines(content, count)
    except pa.ArrowInvalid:  # lines with another number of underscores, or longer than a block
        return None
    *key_columns, tokens, ends = columns
    are_usual = _are_tokens(tokens, has_parts_before=count > 3) and _are_ends(ends)
    if not are_usual or any(_has_odd_part(chunk) for column in key_columns for chunk in column.chunks):
        return None
    ids = key_columns[-1]
    if pc.min(pc.binary_length(ids)).as_py() < _ID_BYTES:
        return None
    return MarkerScan(tuple(key_columns), tuple(map(_fingerprint, ids.chunks)))


def _split_lines(content: bytes, count: int) -> list[pa.ChunkedArray]:
    names = [str(number) for number in range(count)]
    table = csv.read_csv(
        pa.py_buffer(content),
        read_options=csv.ReadOptions(column_names=names, block_size=_BLOCK_BYTES),
        parse_options=csv.ParseOptions(delimiter="_", quote_char=False, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()), check_utf8=False, null_values=[], strings_can_be_null=False
        ),
    )
    return list(table.columns)


def _are_tokens(column: pa.ChunkedArray, *, has_parts_before: bool) -> bool:
    """Whether each is a write token that the part before it cannot be as well: then that one ends the key."""
    if pc.min(pc.binary_length(column)).as_py() < 1:
        return False
    if any(_data_of(chunk).translate(None, _TOKEN_BYTES) for chunk in column.chunks):
        return False
    return not has_parts_before or pc.all(pc.match_substring(column, "-")).as_py()


def _has_odd_part(chunk: pa.BinaryArray) -> bool:
    data = _data_of(chunk)
    return b"." in data and (b".marker." in data or b".log." in data)


def _are_ends(column: pa.ChunkedArray) -> bool:
    first = column[0].as_py()
    if all(_data_of(chunk) == first * len(chunk) for chunk in column.chunks):
        return _LAST_COLUMN.fullmatch(first) is not None
    return all(_LAST_COLUMN.fullmatch(end) is not None for end in pc.unique(column).to_pylist())


def _data_of(chunk: pa.BinaryArray) -> bytes:
    """Return all bytes of a chunk, one value after the other."""
    _, offsets, data = chunk.buffers()
    ends = memoryview(offsets).cast("i")
    return bytes(memoryview(data)[ends[chunk.offset] : ends[chunk.offset + len(chunk)]])


def _fingerprint(ids: pa.BinaryArray) -> pa.UInt64Array:
    """Return a number of each, by two words of its last bytes."""
    return pc.add(_mix(_word(ids, -_ID_BYTES)), _word(ids, -_ID_BYTES // 2))


def _mix(numbers: pa.UInt64Array) -> pa.UInt64Array:
    return pc.multiply(numbers, pa.scalar(_MIX, pa.uint64()))


def _word(ids: pa.BinaryArray, at: int) -> pa.UInt64Array:
    data = _data_of(pc.binary_slice(ids, at, at + 8))
    return pa.Array.from_buffers(pa.uint64(), len(ids), [None, pa.py_buffer(data)])
