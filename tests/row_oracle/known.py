"""Differences that Hudi alone causes: each says why."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.oracle.history import History
from tests.oracle.judge import Difference


@dataclass(frozen=True, slots=True)
class KnownRows:
    """An expected difference: its kind, what its text matches, what the history's setup matches, and the reason."""

    kind: str
    text: str
    setup: str
    why: str


KNOWN: tuple[KnownRows, ...] = (
    KnownRows(
        "writer",
        r"clustering failed: .*Exception when reading log file.*\.log\.\d+_\S+ does not exist",
        "^6,MOR",
        "Hudi 1.2.0: a writer that meets a log file of a dead writer takes it for its own, and its commit names it as "
        "`file:<partition>/<file>`, of which a clustering's plan makes a path that is not there; a compaction ends it",
    ),
    KnownRows(
        "writer",
        r"Found pending restore in active timeline",
        "",
        "Hudi 1.2.0: a restore to a savepoint to which the metadata table does not reach back fails half-way, and no "
        "write runs until it is run again with hoodie.metadata.enable=false (https://github.com/apache/hudi/pull/13691)",
    ),
)


def is_known(history: History, difference: Difference) -> bool:
    """Return whether Hudi alone explains a difference."""
    return any(
        known.kind == difference.kind
        and re.search(known.text, difference.text)
        and re.search(known.setup, str(history.setup))
        for known in KNOWN
    )
