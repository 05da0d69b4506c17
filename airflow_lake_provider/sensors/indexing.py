"""Wait for indexes of a Hudi table: for a build that is planned or requested, and for an index that is ready."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hooks.lake import DEFAULT_CONN_ID, as_airflow_error
from airflow_lake_provider.hooks.open_tables import load_tables
from airflow_lake_provider.hudi.base_path import normalise_base_path
from airflow_lake_provider.indexing.index_spec import split_indexes
from airflow_lake_provider.indexing.wanted_indexes import WantedIndexes, indexes_of, parse_wanted
from airflow_lake_provider.sensors.commit import TimelineSensor
from airflow_lake_provider.sensors.deferrable import PollingSensor
from airflow_lake_provider.timeline_server.watch import WatchKind, tables_of
from airflow_lake_provider.triggers.indexing import IndexReadyTrigger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class HudiPendingIndexSensor(TimelineSensor):
    """Succeeds when the timeline has a pending `indexing` instant of any origin, or a requested index is missing.

    The findings name the instants (`instants`) and the missing indexes' folders in the metadata table (`missing`).
    An index counts as missing if it can be built now: a table of version 6, or without a first write, lacks nothing.

    :param base_path: the table's base path (templated).
    :param tables: instead of one table, a list of mappings with `base_path`, and `table_name` for the tables file
        (templated).
    :param indexes: what each of the tables must have, for example `["record_index"]`; a text is separated by
        semicolons (templated). Without it each table's `indexing.indexes` in the tables file, and the Variable over it;
        `[]` waits for pending instants only.
    :param storage_options: how to open the store; the task then reads it itself. Without them it reads from the
        timeline server, else with the connection in `[lake] storage_conn_ids`.
    :param deferrable: wait in the triggerer instead of a worker.
    """

    kind = WatchKind.PENDING_INDEX
    template_fields: Sequence[str] = (*TimelineSensor.template_fields, "indexes")

    def __init__(self, *, indexes: Sequence[str] | str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.indexes = indexes

    @cached_property
    def wanted(self) -> WantedIndexes:
        """Which indexes the tables must have. A wrong policy fails a sensor of one table; one of many ignores it."""
        try:
            return parse_wanted(self._texts())
        except (LakeError, ValueError) as error:
            if self.tables is None or self.indexes is not None:
                raise as_airflow_error(error) from error
            self.log.warning("the sensor waits for pending builds only: %s", error)
            return WantedIndexes()

    def _texts(self) -> Mapping[str, Sequence[str]]:
        paths = [base_path for base_path, _ in tables_of(self.base_path, self.after, self.tables)]
        if self.indexes is not None:
            return dict.fromkeys(paths, split_indexes(self.indexes))
        names = {str(table["base_path"]): str(table.get("table_name", "")) for table in self.tables or ()}
        policies = load_tables()
        texts = {}
        for path in paths:
            base_path = normalise_base_path(path)
            name = names.get(path) or base_path.rsplit("/", 1)[-1]
            texts[path] = indexes_of(policies.policy_for(base_path, name).indexing)
        return texts


class HudiIndexReadySensor(PollingSensor):
    """Succeeds when the table's properties list the index as complete and no build of it is in flight.

    Each poke asks for the table as it is now, and the answer is the same after the build was archived.

    :param base_path: the table's base path (templated).
    :param index: the index, as in the tables file: `record_index`, `secondary_index:city`, ... (templated).
    :param storage_options: how to open the store; the task then reads it itself. Without them it reads from the
        timeline server, else with the connection in `[lake] storage_conn_ids`.
    :param deferrable: wait in the triggerer instead of a worker.
    """

    template_fields: Sequence[str] = ("base_path", "index", "storage_options")

    def __init__(
        self,
        *,
        base_path: str,
        index: str,
        storage_options: dict[str, Any] | None = None,
        lake_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.base_path = base_path
        self.index = index
        self.storage_options = storage_options
        self.lake_conn_id = lake_conn_id

    def result_of(self, answer: dict[str, Any]) -> str:
        """Return the index's folder in the metadata table."""
        return str(answer["partition"])

    def build_trigger(self) -> IndexReadyTrigger:
        """Return the trigger that reads the table."""
        return IndexReadyTrigger(
            base_path=normalise_base_path(self.base_path),
            index=self.index,
            poll_interval_s=float(self.poke_interval),
            storage_options=dict(self.storage_options or {}),
            lake_conn_id=self.lake_conn_id,
        )
