"""Take a table back to a savepoint: the restore, and the indexes before and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_lake_provider.execution.arguments import is_true
from airflow_lake_provider.execution.restore import require_no_hold
from airflow_lake_provider.hudi.base_path import normalise_base_path
from airflow_lake_provider.indexing.index_spec import split_indexes
from airflow_lake_provider.job_contract import RESTORE_TAKES_BACK, Mode, Service
from airflow_lake_provider.operators.indexing import HudiIndexOperator
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator
from airflow_lake_provider.shared.hudi_settings import METADATA_ENABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_lake_provider.planner.verdict import RunVerdict


class HudiRestoreOperator(HudiTableServiceOperator):
    """Takes a table back to a savepoint with real Hudi, and compares what readers see then with the savepoint's files.

    Running it twice is harmless: a restore that was interrupted goes on, and one that is completed is only compared.
    Next to it no service of the provider runs. The other arguments are those of HudiTableServiceOperator.

    :param savepoint: the savepoint's instant (templated).
    :param takes_back: requested times of the writes and plans that it may take back, as a check has named them;
        separated by commas in a text. It is refused when there is another one by then (templated).
    :param without_metadata: the metadata table does not reach back to the savepoint: Hudi removes it (templated).
    """

    template_fields: Sequence[str] = (*HudiTableServiceOperator.template_fields, "takes_back", "without_metadata")

    def __init__(
        self,
        *,
        savepoint: str,
        takes_back: Sequence[str] | str = (),
        without_metadata: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(service=Service.SAVEPOINT.value, mode=Mode.RESTORE.value, instants=[savepoint], **kwargs)
        self.takes_back = takes_back
        self.without_metadata = without_metadata

    def options_above(self) -> Mapping[str, str]:
        """Return what may be taken back."""
        times = self.takes_back if isinstance(self.takes_back, str) else ",".join(self.takes_back)
        without = {METADATA_ENABLE: "false"} if is_true(self.without_metadata) else {}
        return {RESTORE_TAKES_BACK: times, **without}

    def _run(self, context: Context) -> RunVerdict:
        require_no_hold(self.lake_conn_id, normalise_base_path(self.base_path))
        return super()._run(context)


class HudiRestoredIndexOperator(HudiIndexOperator):
    """Drops or builds the indexes that a check before a restore has named; none are none."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what HudiIndexOperator returns."""
        if split_indexes(self.indexes):
            return super().execute(context)
        self.log.info("table %s: the restore concerns no index", self.base_path)
        return {}
