"""Wait until no writer or service is in the way of a write: a pre-flight task for users' own Spark writers."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hooks.lake import as_airflow_error
from airflow_lake_provider.hooks.open_tables import Preflight, policy_of
from airflow_lake_provider.hudi.base_path import normalise_base_path
from airflow_lake_provider.sensors.deferrable import DeferrableSensor
from airflow_lake_provider.triggers.conflict import ConflictTrigger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context


class HudiConflictSensor(DeferrableSensor):
    """Succeeds when no live writer, pending clustering or running log compaction touches what a write will touch, and
    no restore is pending.

    It locks nothing: two tasks that pass at the same moment still clash, and the younger loses at its commit. Put
    writers of the same partitions into one Airflow pool as well.

    :param base_path: the table's base path (templated).
    :param partitions: partition paths, as Hudi spells them; none means the whole table (templated). One that the table
        does not have is free, and a warning in the task's log, for it may be misspelt.
    :param hudi_options: Hudi settings of the table's writers, of which the heartbeat's, the concurrency mode and the
        strategy of conflict resolution count; without them the table's in the tables file, and the Variable over it.
    :param storage_options: how to open the store; without them the connection in `[lake] storage_conn_ids`.
    :param deferrable: wait in the triggerer instead of a worker.
    """

    template_fields: Sequence[str] = ("base_path", "partitions", "storage_options")

    def __init__(
        self,
        *,
        base_path: str,
        partitions: Sequence[str] = (),
        hudi_options: dict[str, str] | None = None,
        storage_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.base_path = base_path
        self.partitions = partitions
        self.hudi_options = hudi_options
        self.storage_options = storage_options

    def poke(self, context: Context) -> bool:
        """Read the table once."""
        try:
            obstacles = self.preflight.obstacles()
        except LakeError as error:
            if not error.retriable:
                raise as_airflow_error(error) from error
            self.log.warning("%s", error)
            return False
        for obstacle in obstacles:
            self.log.info("table %s: waiting for %s", self.base_path, obstacle)
        return not obstacles

    def build_trigger(self) -> ConflictTrigger:
        """Return the trigger that continues to poll."""
        return ConflictTrigger(
            base_path=normalise_base_path(self.base_path),
            partitions=list(self.partitions),
            hudi_options=dict(self.writer_options),
            poll_interval_s=float(self.poke_interval),
            storage_options=dict(self.storage_options or {}),
        )

    @cached_property
    def writer_options(self) -> Mapping[str, str]:
        """The Hudi settings of the table's writers."""
        if self.hudi_options is not None:
            return self.hudi_options
        return policy_of(normalise_base_path(self.base_path)).hudi_options

    @cached_property
    def preflight(self) -> Preflight:
        """What reads the table."""
        base_path = normalise_base_path(self.base_path)
        preflight = Preflight(base_path, self.partitions, self.writer_options, self.storage_options)
        for partition in preflight.find_missing_partitions():
            self.log.warning("table %s has no partition %r: it is new, or misspelt", base_path, partition)
        return preflight
