"""Which versions of Hudi can build indexes, and which writers can go on beside a build. Pure.

Seen with writers of 1.0.2 beside a builder of 1.2.0: they drop each index that their settings do not name, fail while
they plan a compaction of the metadata table on which an index is being built, and leave log files there that Spark
cannot always read. So such tables are refused. No writer leaves its version behind, but the blocks of the metadata
table's log carry the schema of their records (`HoodieMetadata.avsc`), to which 1.1 added the field `valueType`.

As the job's own Hudi, 1.0.2 does not let its client's lock be held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

CLIENT_CLASS = "org.apache.hudi.client.BaseHoodieClient"
LOCK_METHOD = "getTransactionManager"
LAST_VERSION_OF_1_0 = 8
"""Tables of a newer version were never written by Hudi 1.0."""
LAST_WRITES = 10
_RECORD, _SINCE_1_1 = b'"HoodieMetadataRecord"', b'"valueType"'


def find_own_problem(client_class: Any) -> str:
    """Say what Hudi's class lacks, naming the version; empty when it has what a build needs."""
    if any(str(method.getName()) == LOCK_METHOD for method in client_class.getDeclaredMethods()):
        return ""
    version = client_class.getPackage().getImplementationVersion()
    return (
        f"this service cannot build indexes with Hudi {version}: {CLIENT_CLASS} has no {LOCK_METHOD}(), so the table's "
        "lock cannot be held; run the job with Hudi 1.2.0"
    )


def find_writers_problem(headers: Iterable[bytes]) -> str:
    """Say that one of the last writes was made with Hudi 1.0, by the beginnings of the metadata table's log files."""
    if not any(_RECORD in header and _SINCE_1_1 not in header for header in headers):
        return ""
    return (
        f"one of the last {LAST_WRITES} writes was made with Hudi 1.0, whose writers drop an index built beside "
        "them, or fail: upgrade the table's writers, best to 1.2.0"
    )
