"""The private parts of Hudi that index builds rest on: methods, found by their parameters, and two fields. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_lake_provider.job_contract import LAST_WRITES, FailureKind, are_of_1_0
from lake_jobs.indexing.outcome import IndexFailure

if TYPE_CHECKING:
    from collections.abc import Iterable

WRITER_CLASS = "org.apache.hudi.metadata.HoodieBackedTableMetadataWriter"
METHOD = "initializeFromFilesystem"
PARAMETERS = ("java.lang.String", "java.util.List", "org.apache.hudi.common.util.Option")
COMMIT = "commit"
COMMIT_PARAMETERS = ("java.lang.String", "java.util.Map")
EXPRESSION = "getExpressionIndexUpdates"
EXPRESSION_PARAMETERS = (
    "org.apache.hudi.common.model.HoodieCommitMetadata", "java.lang.String", "java.lang.String",
)  # fmt: skip
DATA_META_CLIENT = "dataMetaClient"
META_CLIENT_CLASS = "org.apache.hudi.common.table.HoodieTableMetaClient"
META_PATH = "metaPath"


def find_method(owner: Any, name: str = METHOD, parameters: tuple[str, ...] = PARAMETERS) -> Any:
    """Return a method of Hudi's class, that builds unless another one is named.

    Raises IndexFailure, naming the version, when it has none.
    """
    for method in owner.getDeclaredMethods():
        if str(method.getName()) != name:
            continue
        if tuple(str(kind.getName()) for kind in method.getParameterTypes()) == parameters:
            method.setAccessible(True)
            return method
    raise _refusal(owner, f"{name}({', '.join(parameters)})")


def find_field(owner: Any, name: str) -> Any:
    """Return a field of Hudi's class. Raises IndexFailure, naming the version, when it has none."""
    for field in owner.getDeclaredFields():
        if str(field.getName()) == name:
            field.setAccessible(True)
            return field
    raise _refusal(owner, name)


def _refusal(owner: Any, missing: str) -> IndexFailure:
    version = owner.getPackage().getImplementationVersion()
    return IndexFailure(
        FailureKind.OTHER,
        f"this service cannot build indexes with Hudi {version}: {owner.getName()} has no {missing}; "
        "it was made for 1.2.0",
    )


# --- Which writers can go on during a build. Pure.
#
# Tried with writers of 1.0.2 during a build of 1.2.0: they drop each index that their settings do not name, fail while
# they plan a compaction of the metadata table on which an index is being built, and leave log files there that Spark
# cannot always read. So such tables are refused.


def find_writers_problem(headers: Iterable[bytes]) -> str:
    """Return the problem of a recent write by Hudi 1.0, by the beginnings of the metadata table's log files."""
    if not are_of_1_0(headers):
        return ""
    return (
        f"one of the last {LAST_WRITES} writes was made with Hudi 1.0, whose writers drop an index built at "
        "the same time, or fail: upgrade the table's writers, best to 1.2.0"
    )
