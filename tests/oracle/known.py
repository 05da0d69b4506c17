"""Differences that are expected: each says why, and which history shows it.

`test_oracle.py` runs each history and fails when its difference is gone, so that the entry goes as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.oracle.history import History
from tests.oracle.judge import Difference


@dataclass(frozen=True, slots=True)
class Known:
    """One expected difference: its kind, what its text matches, the reason, and a history that shows it."""

    kind: str
    pattern: str
    why: str
    history: History

    def covers(self, difference: Difference) -> bool:
        return difference.kind == self.kind and re.search(self.pattern, difference.text) is not None


KNOWN: tuple[Known, ...] = (
    Known(
        "content-secondary_index",
        r"Hudi alone \[.+\], ours alone \[\]",
        "Hudi 1.2.0: a log compaction takes a row out of a secondary index that was deleted, and written again later, "
        "in the log files that it merges (`updateSecondaryIndexIfPresent` passes over COMPACT and CLUSTER only)",
        History.parse(
            "8,MOR,1,at_commit",
            "roll_back_last:6296 die:9277 roll_back:6178 archive:1391 schedule_log_compaction:9983 archive:3637 "
            "merge_into:2381 index:7842 clean:1122 execute_log_compaction:5455 delete:8354 begin:9878 finish:6527 "
            "log_compaction:5954 begin:3887 finish:4831 schedule_log_compaction:7218 execute_log_compaction:4377 "
            "index:7702",
        ),
    ),
)


def is_known(difference: Difference) -> bool:
    return any(known.covers(difference) for known in KNOWN)
