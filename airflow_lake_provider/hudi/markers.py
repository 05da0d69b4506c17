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

MARKER_FOLDER = ".hoodie/.temp"
TYPE_FILE = "MARKERS.type"
SERVER_FILE = re.compile(r"MARKERS\d+", re.ASCII)

KIND = rb"\.marker\.(?:MERGE|CREATE|APPEND)"
# Base file: <file id>_<write token>_<instant>.<format>; log file: .<file id>_<instant>.log.<version>_<write token>,
# with .cdc behind it for a change log.
_SUFFIX = rb"_(?:[0-9A-Za-z-]+_\d+(?:_\d+)?\.[a-z]+|\d+(?:_\d+)?\.log\.\d+(?:_[0-9A-Za-z-]+)?(?:\.cdc)?)" + KIND
_LINE_END = re.compile(_SUFFIX + rb"\n")
_MARKER_END = re.compile(_SUFFIX + rb"(?:[\n,]|\r\n)?")
_ONE_MARKER = re.compile(rb"(.+)" + _SUFFIX, re.DOTALL)
_ANY_MARKER = re.compile(rb".*" + KIND, re.DOTALL)


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
