"""Differences that are expected: each says why, and which history shows it.

`test_oracle.py` runs each history and fails when its difference is gone, so that the entry goes as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.oracle.history import History
from tests.oracle.judge import BULK_INSERT, DOWNGRADED, LOG_COMPACTION, RESTORED, REVIVED, UPGRADED, Difference


@dataclass(frozen=True, slots=True)
class Known:
    """One expected difference: its kind, what its text matches, the reason, and a history that shows it.

    `is_random`: whether random histories may show it as well.
    """

    kind: str
    pattern: str
    why: str
    history: History
    is_random: bool = True

    def covers(self, difference: Difference) -> bool:
        return difference.kind == self.kind and re.search(self.pattern, difference.text) is not None


KNOWN: tuple[Known, ...] = (
    Known(
        LOG_COMPACTION,
        r"does not find",
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
    Known(
        BULK_INSERT,
        r"is said to lack|does not find",
        "Hudi 1.2.0: a bulk insert whose writer streams metadata puts no row into a secondary index, so readers miss "
        "new rows (two of two, both table types); an insert does, and so does a writer that updates it at the commit",
        History.parse("9,COW,1,streaming", "index:5 write:3"),
    ),
    Known(
        REVIVED,
        r"does not find",
        "Hudi 1.2.0: a writer of a merge-on-read table whose own index is not the record index leaves a key out of it "
        "that an earlier commit has deleted and that it writes again into the same file group (with Hudi's defaults; "
        "also where no index of ours was ever built)",
        History.parse("9,MOR,1,at_commit", "write:6633 index:7139 write:1300 write:6654 write:9830"),
    ),
    Known(
        DOWNGRADED,
        r"has no place for|alone",
        "Hudi 1.2.0: a downgrade from version 8 to 6 lists each folder of the metadata table as a complete index, also "
        "one whose build is not completed; readers then use what is there of it. The table's properties go on to list "
        "it as being built, so `HudiIndexReadySensor` does not take it for ready",
        History.parse(
            "8,COW,1,at_commit",
            "plan_indexes:3010 begin:3064 die:3607 finish:9765 write_alone:1248 write:1116 build_indexes:6712 "
            "downgrade:6161 upgrade:8160",
        ),
    ),
    Known(
        UPGRADED,
        r"Hudi \(\d+, \d+\)",
        "Hudi 1.2.0: an upgrade from version 6 leaves a pending compaction as it is. The log files that its file groups"
        " got since have the plan's own instant, which is not completed: readers of version 8 see none of these rows "
        "until the compaction is executed",
        History.parse(
            "8,MOR,off,streaming",
            "downgrade:9756 write:7087 write:7509 schedule_compaction:3909 write:5834 upgrade:8686",
        ),
    ),
    Known(
        RESTORED,
        r"has no place for|does not find|alone",
        "Hudi 1.2.0: a restore to a savepoint undoes what the metadata table got since, and with it the builds of "
        "indexes, which the table goes on to list as complete; later writes fail",
        History.parse("9,MOR,1,at_commit", "write:6882 savepoint:4419 index:4223 restore:4584"),
    ),
    Known(
        "content-record_index",
        r"Hudi alone \[.+\], ours alone \[\]",
        "Hudi 1.2.0: a plan of several indexes that Hudi's own client executes leaves the record index empty, unless "
        "it is the last one in the plan",
        History.parse("9,COW,1,at_commit", "plan_indexes:9 build_any_by_hudi:7 write:3"),
        is_random=False,
    ),
)


def is_known(difference: Difference) -> bool:
    return any(known.covers(difference) for known in KNOWN if known.is_random)
