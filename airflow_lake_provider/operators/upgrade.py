"""Give tables another version: one table, or each of many in its turn."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException

from airflow_lake_provider.errors import ServiceFailedError
from airflow_lake_provider.execution.restore import require_no_hold
from airflow_lake_provider.execution.upgrade import UpgradeBudget, UpgradeTurn, find_turn
from airflow_lake_provider.hooks.open_tables import table_opener
from airflow_lake_provider.hudi.base_path import normalise_base_path
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.job_contract import UPGRADE_VERSION, FailureKind, Mode, Service
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_lake_provider.planner.verdict import RunVerdict

WAIT_S = 20
MAX_WAIT_S = 600
"""Between two questions of a table whose turn is far away."""


class HudiUpgradeOperator(HudiTableServiceOperator):
    """Gives a table another version, up or down, by Hudi's own handlers, and compares what readers see.

    Running it twice is harmless: a change that was interrupted goes on. Where readers see other rows, the table goes
    back to the version that it had, and the task fails. Next to it no service of the provider runs. The other arguments
    are those of HudiTableServiceOperator.

    :param version: the table version: 6, 8 or 9 (templated).
    """

    template_fields: Sequence[str] = (*HudiTableServiceOperator.template_fields, "version")

    def __init__(self, *, version: int | str, **kwargs: Any) -> None:
        super().__init__(service=Service.SAVEPOINT.value, mode=Mode.UPGRADE.value, **kwargs)
        self.version = version

    def options_above(self) -> Mapping[str, str]:
        """Return the version that the table gets."""
        return {UPGRADE_VERSION: str(int(self.version))}

    def _run(self, context: Context) -> RunVerdict:
        base_path = normalise_base_path(self.base_path)
        require_no_hold(self.lake_conn_id, base_path)
        verdict = super()._run(context)
        version = load_table_properties(table_opener(self.storage_options)(base_path)).version
        if version != int(self.version):
            raise ServiceFailedError(
                f"table {base_path}: the job reported version {self.version}, and the table has {version}",
                FailureKind.OTHER,
            )
        return verdict


class HudiMappedUpgradeOperator(HudiUpgradeOperator):
    """One of many tables, which waits for its turn; its arguments are data, and are not rendered.

    :param budget: `at_once`, `wave` and `most_failed`: how many tables change at once, how many are in a wave, which
        begins when the one before has ended, and after how many failures the rest is skipped.
    """

    template_fields: Sequence[str] = ()

    def __init__(self, *, budget: Mapping[str, int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.budget = budget

    def execute(self, context: Context) -> dict[str, Any]:
        """Change the version, or wait; without a worker slot."""
        task: Any = context["ti"]
        at = int(task.map_index)
        found = task.get_task_states(
            dag_id=str(task.dag_id), task_ids=[str(task.task_id)], run_ids=[str(context["run_id"])]
        )
        states = {int(name.rpartition("_")[2]): state for name, state in found.get(str(context["run_id"]), {}).items()}
        turn = find_turn(at, states, UpgradeBudget(**self.budget))
        if turn is UpgradeTurn.STOP:
            raise AirflowSkipException("too many tables have failed: this one keeps its version")
        if turn is UpgradeTurn.WAIT:
            open_before = sum(states.get(place) not in {"success", "failed", "skipped"} for place in range(at))
            wait_s = min(MAX_WAIT_S, WAIT_S * max(1, open_before // max(1, self.budget["at_once"])))
            self.log.info("%d tables come before this one: again in %d s", open_before, wait_s)
            raise AirflowRescheduleException(datetime.now(UTC) + timedelta(seconds=wait_s))  # type: ignore[no-untyped-call]
        return super().execute(context)
