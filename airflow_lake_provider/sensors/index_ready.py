"""Wait until readers may use an index of a Hudi table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue
from airflow.sdk.bases.sensor import BaseSensorOperator

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hooks.lake import as_airflow_error
from airflow_lake_provider.hooks.open_tables import table_opener
from airflow_lake_provider.hudi.base_path import normalise_base_path
from airflow_lake_provider.indexing.table_indexes import load_readiness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class HudiIndexReadySensor(BaseSensorOperator):
    """Succeeds when the table's properties list the index as complete and no build of it is in flight.

    The answer comes from storage itself at each poke, and is the same after the build was archived.

    :param base_path: the table's base path (templated).
    :param index: the index, as in the tables file: `record_index`, `secondary_index:city`, ... (templated).
    :param storage_options: how to open the store; without them the connection in `[lake] storage_conn_ids`.
    """

    template_fields: Sequence[str] = ("base_path", "index", "storage_options")

    def __init__(
        self, *, base_path: str, index: str, storage_options: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.base_path = base_path
        self.index = index
        self.storage_options = storage_options

    def poke(self, context: Context) -> PokeReturnValue:
        """Read the table once."""
        try:
            storage = table_opener(self.storage_options)(normalise_base_path(self.base_path))
            readiness = load_readiness(storage, self.index)
        except LakeError as error:
            if not error.retriable:
                raise as_airflow_error(error) from error
            self.log.warning("%s", error)
            return PokeReturnValue(is_done=False)
        self.log.info("table %s: index %s: %s", self.base_path, readiness.partition, readiness.reason)
        return PokeReturnValue(is_done=readiness.is_ready, xcom_value=readiness.partition)
