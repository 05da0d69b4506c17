"""Which log files are shorter than the commits say that wrote them. Pure.

Hudi's readers skip a block of a log file that is cut short, and a file of zero bytes, without an error: a writer that
died may have left it. Where a commit has named a longer file, its rows are lost to readers, and a rewrite of the file
group makes that final: once the old files are cleaned, to put the log file back from a copy helps no more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_INSTANT = re.compile(r"_(\d+)\.log\.")
_SCHEME = re.compile(r"^[a-z][a-z0-9]*:(?!/)")


def path_of_stat(path: str) -> str:
    """Return a file's path below the base path, as a write's statistics name it.

    Source: Hudi 1.2.0. In a table of version 6, a writer that meets a log file of a dead writer names it
    `file:<partition>/<file>`, which Hudi itself does not read back: it takes the partition for a part of a URI.
    """
    return _SCHEME.sub("", path, count=1)


def find_log_writers(paths: Iterable[str], completed: Iterable[str], *, has_own_logs: bool) -> list[str]:
    """Return which of the completed writes may have written to log files, by their requested times.

    `has_own_logs`: each write has log files of its own, named by it; else they are named by their slice's base file.
    """
    named = {found[1] for path in paths if (found := _INSTANT.search(path))}
    if has_own_logs:
        return [time for time in completed if time in named]
    return [time for time in completed if named and time > min(named)]


def name_cut_logs(paths: Collection[str], committed: Iterable[tuple[str, int]], found: Mapping[str, int]) -> list[str]:
    """Return log files that are shorter than a commit said, in words.

    `committed` are paths and sizes by the commits; a file that several commits appended to comes several times.
    `found` are sizes in the store; a file that is gone is not named, for Hudi fails on it by itself.
    """
    longest: dict[str, int] = {}
    for path, size_bytes in committed:
        if path in paths:
            longest[path] = max(size_bytes, longest.get(path, 0))
    return [
        f"{path} ({found[path]:,} of {size_bytes:,} bytes)"
        for path, size_bytes in sorted(longest.items())
        if found.get(path, size_bytes) < size_bytes
    ]
