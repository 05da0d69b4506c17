"""Which files a plan names, and whether they lie in its table. Pure.

Hudi writes whole paths into the plans of cleans, clusterings and rollbacks. Where a table was copied with such a plan,
Hudi would delete or read files of the table that was copied. The table's writers can write any path into a plan.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_WITH_FILES = (
    *("filePathsToBeDeletedPerPartition", "partitionsToBeDeleted", "inputGroups", "RollbackRequests", "operations"),
)
"""The fields of the plans of a clean, a clustering, a rollback and a compaction that name files and partitions."""


def whole_paths(plan: str) -> frozenset[str]:
    """Return the whole paths that a plan names, and the relative ones that lead up; `plan` is Avro's JSON."""
    fields = json.loads(plan)
    texts = (text for name in _WITH_FILES for text in _texts(fields.get(name)))
    return frozenset(text for text in texts if leads_elsewhere(text))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def find_outside(paths: Iterable[str], folders: Collection[str]) -> str:
    """Return the first path that lies below none of these folders; empty when each lies below one."""
    below = tuple(f"{folder.rstrip('/')}/" for folder in folders)
    return min((path for path in paths if leads_up(path) or not path.startswith(below)), default="")


def leads_elsewhere(path: str) -> bool:
    """Return whether a path that should be relative to the table is a whole one, or leads up."""
    return path.startswith("/") or ":/" in path or leads_up(path)


def leads_up(path: str) -> bool:
    """Return whether a path has a `..`, which Hadoop resolves."""
    return ".." in path.split("/")
