"""OpenLineage for a table service: the table is read and written, and these are the numbers.

The OpenLineage provider (extra `openlineage`) calls `get_openlineage_facets_on_*` of an operator, in the task's process
and never where it is not installed: so only those methods import its classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_lake_provider.execution.table_reader import ServiceEffect
from airflow_lake_provider.hudi.base_path import normalise_base_path

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_lake_provider.planner.verdict import Judgement

FACET = "hudi_tableService"


class ServiceLineage:
    """Mixin of the operator that runs a service; reads the operator's own arguments after they were rendered."""

    base_path: str
    table_name: str
    service: str
    mode: str
    _lineage: tuple[Judgement, ServiceEffect] | None = None

    def keep_lineage(self, judgement: Judgement, effect: ServiceEffect) -> None:
        """Store what a try did, for the event that follows it."""
        self._lineage = (judgement, effect)

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return the table that the try will read and write."""
        return self._to_lineage({})

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return what the try did, by the timeline; only the table for a try that ended before its verdict."""
        if self._lineage is None:
            return self._to_lineage({})
        judgement, effect = self._lineage
        done = {
            "outcome": judgement.outcome.value,
            "reason": judgement.reason,
            "completedInstants": list(judgement.completed_instants),
            "pendingInstants": list(judgement.pending_instants),
            "filesBefore": effect.files_before,
            "filesAfter": effect.files_after,
            "filesDeleted": effect.files_deleted,
        }
        return self._to_lineage(done, effect, judgement.completed_instants)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the table of the failed try."""
        return self._to_lineage({"outcome": "failed"})

    def _to_lineage(
        self, done: dict[str, Any], effect: ServiceEffect | None = None, instants: tuple[str, ...] = ()
    ) -> OperatorLineage[Any, Any]:
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.facet_v2 import JobFacet, RunFacet

        base_path = normalise_base_path(self.base_path)
        source, target = _datasets(base_path, self.table_name, effect or ServiceEffect(), instants)
        what = {"service": self.service, "mode": self.mode}
        run_facets: dict[str, Any] = {FACET: RunFacet().with_additional_properties(**what, **done)}
        job_facets: dict[str, Any] = {FACET: JobFacet().with_additional_properties(**what)}
        return OperatorLineage(inputs=[source], outputs=[target], run_facets=run_facets, job_facets=job_facets)


def dataset_name(base_path: str) -> tuple[str, str]:
    """Return namespace and name of a table's dataset, by OpenLineage's rules for paths: `s3://bucket` and `a/b`."""
    scheme, separator, rest = base_path.partition("://")
    if not separator:
        return "file", base_path
    authority, _, path = rest.partition("/")
    if scheme == "file":
        return "file", f"/{path}"
    if scheme in {"s3a", "s3n"}:
        scheme = "s3"
    # Object stores name an object without the slash, file systems by its absolute path.
    return f"{scheme}://{authority}", path if scheme in {"s3", "gs", "abfs", "abfss"} else f"/{path}"


def _datasets(base_path: str, table_name: str, effect: ServiceEffect, instants: tuple[str, ...]) -> tuple[Any, Any]:
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import (
        DatasetFacet,
        InputDatasetFacet,
        OutputDatasetFacet,
        dataset_version_dataset,
        input_statistics_input_dataset,
        output_statistics_output_dataset,
        symlinks_dataset,
    )

    namespace, name = dataset_name(base_path)
    facets: dict[str, DatasetFacet] = {}
    if table_name:
        link = symlinks_dataset.Identifier(namespace=namespace, name=table_name, type="TABLE")
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet(identifiers=[link])
    read: dict[str, InputDatasetFacet] = {}
    if effect.files_before is not None:
        read["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            size=effect.read_bytes, fileCount=effect.files_before
        )
    written: dict[str, OutputDatasetFacet] = {}
    if effect.files_after is not None:
        written["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=effect.records_written, size=effect.written_bytes, fileCount=effect.files_after
        )
    versioned = dict(facets)
    if instants:
        versioned["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=instants[-1])
    return (
        InputDataset(namespace=namespace, name=name, facets=facets, inputFacets=read),
        OutputDataset(namespace=namespace, name=name, facets=versioned, outputFacets=written),
    )
