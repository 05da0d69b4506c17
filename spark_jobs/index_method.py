"""The private method of Hudi that index builds rest on, found by its parameters. Pure."""

from __future__ import annotations

from typing import Any

from index_outcome import IndexFailure
from job_contract import FailureKind

WRITER_CLASS = "org.apache.hudi.metadata.HoodieBackedTableMetadataWriter"
METHOD = "initializeFromFilesystem"
PARAMETERS = ("java.lang.String", "java.util.List", "org.apache.hudi.common.util.Option")


def find_method(owner: Any) -> Any:
    """Return the method that builds, of Hudi's class. Raises IndexFailure, naming the version, when it has none."""
    for method in owner.getDeclaredMethods():
        if str(method.getName()) != METHOD:
            continue
        if tuple(str(kind.getName()) for kind in method.getParameterTypes()) == PARAMETERS:
            method.setAccessible(True)
            return method
    raise IndexFailure(
        FailureKind.OTHER,
        f"this service cannot build indexes with Hudi {owner.getPackage().getImplementationVersion()}: "
        f"{WRITER_CLASS} has no {METHOD}({', '.join(PARAMETERS)}); it was made for 1.2.0",
    )
