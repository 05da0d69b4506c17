"""Erase record keys from a table: the steps of the DAG `lake_erase`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_lake_provider.execution.arguments import require_allowed_table
from airflow_lake_provider.execution.job import manager_patience_s
from airflow_lake_provider.execution.restore import find_holds
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.job_contract import ERASE_FOLDER, ERASE_SINKS, ERASE_STEP, EraseStep, Mode, Service
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_lake_provider.planner.verdict import RunVerdict


class HudiEraseOperator(HudiTableServiceOperator):
    """Does one step of an erasure with real Hudi; next to it no service of the provider runs.

    The keys are in the file `keys.jsonl` of a folder, a JSON object on each line: `{"key": "...", "partition": "..."}`.
    They are never part of a task's arguments, of XCom or of a log, where a keyed hash stands for each. Doing a step
    again is harmless. The other arguments are those of HudiTableServiceOperator.

    :param step: `check`, `delete`, `rewrite` or `prove`.
    :param folder: the folder of the file of keys, outside of every table; the receipt is written there (templated).
    """

    template_fields: Sequence[str] = (*HudiTableServiceOperator.template_fields, "folder")

    def __init__(self, *, step: str, folder: str, **kwargs: Any) -> None:
        super().__init__(service=Service.TTL.value, mode=Mode.ERASE.value, **kwargs)
        self.step = EraseStep(step)
        self.folder = folder
        self._elsewhere: tuple[str, ...] = ()

    def options_above(self) -> Mapping[str, str]:
        """Return the step, the folder, and what the job cannot know of sinks and holds."""
        folder = normalise_base_path(self.folder)
        return {ERASE_STEP: self.step.value, ERASE_FOLDER: folder, ERASE_SINKS: "\n".join(self._elsewhere)}

    def _run(self, context: Context) -> RunVerdict:
        # The job writes there: the folder has the bounds of a table's.
        require_allowed_table(normalise_base_path(self.folder))
        table_id = table_id_of(normalise_base_path(self.base_path))
        hook = LakeHook(self.lake_conn_id, manager_patience_s())
        sinks = (_describe_sink(sink) for sink in hook.list_sinks(table_id))
        self._elsewhere = (*sinks, *find_holds(hook, table_id))
        return super()._run(context)


def _describe_sink(sink: Mapping[str, Any]) -> str:
    until = f"has changes up to {sink['completed_time']}" if sink["completed_time"] else "has nothing yet"
    return (
        f"sink {sink['name']} {until}, and gets the deletion with its next run; what it keeps of earlier changes "
        "(files, a topic without compaction, another table's older versions) is to be removed there"
    )
