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
        "rows",
        r"listing reader .*0 not found: \[\]; .*'archive/old_orders/",
        "",
        "Hudi 1.2.0: a reader without the metadata table lists the partitions of a table inside the folder as the "
        "outer table's, and takes their files for committed once the outer table's commits of that time are archived",
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
