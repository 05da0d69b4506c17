"""The private parts of Hudi that index builds rest on: a method, found by its parameters, and two fields. Pure."""

from __future__ import annotations

from typing import Any

from index_outcome import IndexFailure
from job_contract import FailureKind

WRITER_CLASS = "org.apache.hudi.metadata.HoodieBackedTableMetadataWriter"
METHOD = "initializeFromFilesystem"
PARAMETERS = ("java.lang.String", "java.util.List", "org.apache.hudi.common.util.Option")
DATA_META_CLIENT = "dataMetaClient"
META_CLIENT_CLASS = "org.apache.hudi.common.table.HoodieTableMetaClient"
META_PATH = "metaPath"


def find_method(owner: Any) -> Any:
    """Return the method that builds, of Hudi's class. Raises IndexFailure, naming the version, when it has none."""
    for method in owner.getDeclaredMethods():
        if str(method.getName()) != METHOD:
            continue
        if tuple(str(kind.getName()) for kind in method.getParameterTypes()) == PARAMETERS:
            method.setAccessible(True)
            return method
    raise _refusal(owner, f"{METHOD}({', '.join(PARAMETERS)})")


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
