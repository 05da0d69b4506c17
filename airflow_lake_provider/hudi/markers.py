"""Markers: the files that an active write has begun, by file group.

Source: Hudi `WriteMarkers`, `MarkerDirState`, `MarkerUtils` (RFC-56 builds on them). A marker is the path of a data
file, relative to the table, and `.marker.CREATE`, `.MERGE` or `.APPEND`:

    city=Oslo/6c1f…-0_0-23-45_20261121104100123.parquet.marker.MERGE
    city=Oslo/.6c1f…-0_20261121104100123.log.1_0-23-45.marker.CREATE

Direct markers are empty files of that name below `.hoodie/.temp/<instant>/`. A timeline server writes them as lines
into `MARKERS0`, `MARKERS1`, … there, next to `MARKERS.type`; it rewrites such a file each time it adds to it, so a
reader can meet it empty or cut off.

One key of bytes identifies a file group, `<partition>/<file id>`: an instant may have 100,000 markers, and nothing
else keeps a comparison of all of them quick. Hudi's own detector cuts the path at its first underscore, which makes
one of all partitions `event_date=…`; here only the file's name is cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

MARKER_FOLDER = ".hoodie/.temp"
TYPE_FILE = "MARKERS.type"
SERVER_FILE = re.compile(r"MARKERS\d+", re.ASCII)

_KIND = rb"\.marker\.(?:MERGE|CREATE|APPEND)"
# Base file: <file id>_<write token>_<instant>.<format>; log file: .<file id>_<instant>.log.<version>_<write token>,
# with .cdc behind it for a change log.
_SUFFIX = rb"_(?:[0-9A-Za-z-]+_\d+(?:_\d+)?\.[a-z]+|\d+(?:_\d+)?\.log\.\d+(?:_[0-9A-Za-z-]+)?(?:\.cdc)?)" + _KIND
_LINE_END = re.compile(_SUFFIX + rb"\n")
_MARKER_END = re.compile(_SUFFIX + rb"(?:[\n,]|\r\n)?")
_ONE_MARKER = re.compile(rb"(.+)" + _SUFFIX, re.DOTALL)
_ANY_MARKER = re.compile(rb".*" + _KIND, re.DOTALL)


class MarkerKind(StrEnum):
    """How an instant writes its markers; the spelling of `MARKERS.type`."""

    NONE = "NONE"
    """It has written none yet, or they are removed: it completed or was rolled back."""
    DIRECT = "DIRECT"
    TIMELINE_SERVER_BASED = "TIMELINE_SERVER_BASED"


@dataclass(frozen=True, slots=True)
class ParsedMarkers:
    """The keys in one marker file, as often as they stand in it. `is_whole` is false when something is not a marker:
    what is missing could be any file group.
    """

    keys: tuple[bytes, ...]
    is_whole: bool


def is_marker_name(name: str) -> bool:
    """Whether a file below an instant's marker folder is a direct marker, of a file that is understood or not."""
    return _ANY_MARKER.fullmatch(name.encode("utf-8", "surrogateescape")) is not None


def parse_direct_marker(relative_path: str) -> bytes | None:
    """Return the file group's key of a direct marker, by its path below its instant's folder; None for another path."""
    found = _ONE_MARKER.fullmatch(relative_path.encode("utf-8", "surrogateescape"))
    return None if found is None else _without_dot(found.group(1))


def parse_marker_file(content: bytes) -> ParsedMarkers:
    """Return what stands in a `MARKERS<n>` file. An empty one is not whole: its writer is about to fill it."""
    # All lines in one go in C; right when each line ended as a marker does, and holds no second one.
    *paths, rest = _LINE_END.split(content)
    joined = b"".join(paths)
    if rest or b"" in paths or b"\n" in joined or b".marker." in joined:
        return _parse_odd_file(content)
    # Names that begin with a dot are those of log files.
    keys = map(_without_dot, paths) if b".log." in content else paths
    return ParsedMarkers(tuple(keys), bool(paths))


def _parse_odd_file(content: bytes) -> ParsedMarkers:
    """Take what can be understood.

    A timeline server that takes over markers of an earlier one joins them with commas, and the first new one follows
    without any separator (`MarkerDirState.syncMarkersFromFileSystem`).
    """
    pieces = _MARKER_END.split(content)
    is_whole = not pieces.pop() and bool(pieces) and b"" not in pieces
    keys = []
    for piece in pieces:
        # Lines that are no markers stand before one that is.
        *strange, path = piece.split(b"\n")
        is_whole = is_whole and not strange
        if path:
            keys.append(_without_dot(path))
    return ParsedMarkers(tuple(keys), is_whole)


def _without_dot(path: bytes) -> bytes:
    # A log file's name begins with a dot, its file group's id does not.
    folder, slash, name = path.rpartition(b"/")
    return folder + slash + name[1:] if name.startswith(b".") else path


# --- Many markers at once: Arrow splits the lines, and fingerprints show which of them to compare
#
# Python's own objects for 150,000 keys take longer to make and to compare than a whole check may. So lines of the usual
# shape (base files with Hudi's file ids, under one number of underscores) stay in Arrow's columns, and only keys whose
# fingerprint is one of the asked ones become objects and are compared. All other lines are for `parse_marker_file`.
# Functions import Arrow: with NumPy it takes a third of a second of CPU, which a task with few markers need not pay.

_LEAST_SCANNED_BYTES = 256 * 1024
_BLOCK_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_TOKEN_BYTES = b"-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LAST_COLUMN = re.compile(rb"\d+\.(?!log\.)[a-z]+" + _KIND)
_ID_BYTES = 32
"""The last bytes of a key, of which the fingerprint is made: of Hudi's file ids almost the whole UUID."""
_MIX = 0x9E3779B97F4A7C15
_MOST_BITS = 24


@dataclass(frozen=True, slots=True, eq=False)
class MarkerScan:
    """The markers of some files, all of the usual shape. Not empty."""

    columns: tuple[pa.ChunkedArray, ...]
    """The parts of each key between its underscores."""
    fingerprints: tuple[pa.UInt64Array, ...]
    """Of each key, by chunk of the columns."""

    def find_shared(self, asked: frozenset[bytes]) -> frozenset[bytes]:
        """Return which of the asked file groups have a marker here."""
        found: list[bytes] = []
        table = FileGroupFilter.of(asked)
        for number, fingerprints in enumerate(self.fingerprints):
            rows = table.find_rows(fingerprints)
            if len(rows):
                parts = [column.chunk(number).take(rows).to_pylist() for column in self.columns]
                found += map(b"_".join, zip(*parts, strict=True))
        return asked.intersection(found)


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
        import pyarrow as pa
        import pyarrow.compute as pc

        ids = pa.array(list(keys), pa.binary())
        ids = ids.filter(pc.greater_equal(pc.binary_length(ids), _ID_BYTES))
        fingerprints = _fingerprint(ids)
        self._bits = pa.scalar(64 - min(_MOST_BITS, max(8, len(ids).bit_length() + 4)), pa.uint64())
        table = bytearray(1 << (64 - self._bits.as_py()))
        for place in self._places(fingerprints).to_pylist():
            table[place] = 1
        self._table = pa.Array.from_buffers(pa.uint8(), len(table), [None, pa.py_buffer(bytes(table))])

    def find_rows(self, fingerprints: pa.UInt64Array) -> pa.UInt64Array:
        """Return the positions of the fingerprints that may be those of a key."""
        import pyarrow.compute as pc

        return pc.indices_nonzero(pc.take(self._table, self._places(fingerprints), boundscheck=False))

    def _places(self, fingerprints: pa.UInt64Array) -> pa.UInt64Array:
        import pyarrow.compute as pc

        return pc.shift_right(_mix(fingerprints), self._bits)


def scan_marker_files(contents: Sequence[bytes]) -> MarkerScan | None:
    """Return the markers in some `MARKERS<n>` files, or None when they are few or a line has another shape.

    What it returns holds what `parse_marker_file` finds in each file, all of them whole.
    """
    if sum(map(len, contents)) < _LEAST_SCANNED_BYTES or not all(content.endswith(b"\n") for content in contents):
        return None
    content = b"".join(contents)
    # Arrow ends lines at these as well, and leaves that one out.
    if b"\r" in content or content.startswith(_BOM):
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

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
    import pyarrow as pa
    from pyarrow import csv

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
    import pyarrow.compute as pc

    if pc.min(pc.binary_length(column)).as_py() < 1:
        return False
    if any(_data_of(chunk).translate(None, _TOKEN_BYTES) for chunk in column.chunks):
        return False
    return not has_parts_before or pc.all(pc.match_substring(column, "-")).as_py()


def _has_odd_part(chunk: pa.BinaryArray) -> bool:
    data = _data_of(chunk)
    return b"." in data and (b".marker." in data or b".log." in data)


def _are_ends(column: pa.ChunkedArray) -> bool:
    import pyarrow.compute as pc

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
    import pyarrow.compute as pc

    return pc.add(_mix(_word(ids, -_ID_BYTES)), _word(ids, -_ID_BYTES // 2))


def _mix(numbers: pa.UInt64Array) -> pa.UInt64Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.multiply(numbers, pa.scalar(_MIX, pa.uint64()))


def _word(ids: pa.BinaryArray, at: int) -> pa.UInt64Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    data = _data_of(pc.binary_slice(ids, at, at + 8))
    return pa.Array.from_buffers(pa.uint64(), len(ids), [None, pa.py_buffer(data)])
