"""What a service's job goes by: what its run was given, and for a run by hand below that the table's policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.manager.runs import is_manager_run
from airflow_lake_provider.operators.service_arguments import parse_settings
from airflow_lake_provider.owned_options import find_owned_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.hooks.lake import LakeHook
    from airflow_lake_provider.job_contract import Service
    from airflow_lake_provider.operators.table_reader import TableReader


@dataclass(frozen=True, slots=True)
class TableSettings:
    """Settings of one run. `timeout_s` is the table's for a try; None where nobody said."""

    hudi_options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    spark_conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    conflict: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    engine: str = ""
    spark_conn_id: str = ""
    timeout_s: float | None = None

    def under(self, given: TableSettings) -> TableSettings:
        """Return these settings with the given ones over them, key by key."""
        return TableSettings(
            hudi_options={**self.hudi_options, **given.hudi_options},
            spark_conf={**self.spark_conf, **given.spark_conf},
            conflict={**self.conflict, **given.conflict},
            engine=given.engine or self.engine,
            spark_conn_id=given.spark_conn_id or self.spark_conn_id,
            timeout_s=given.timeout_s or self.timeout_s,
        )


def parse_given(operator: Any) -> TableSettings:
    """Return what an operator's arguments say. Raises ServiceRefusedError that names the argument."""
    return TableSettings(
        hudi_options=parse_settings(operator.hudi_options, "hudi_options"),
        spark_conf=parse_settings(operator.spark_conf, "spark_conf"),
        conflict=parse_settings(operator.conflict, "conflict"),
        engine=operator.engine or "",
        spark_conn_id=operator.spark_conn_id or "",
    )


def complete_settings(
    given: TableSettings, run_id: str, hook: LakeHook, table: TableReader, service: Service
) -> TableSettings:
    """Return what holds for the run; the manager's own runs were given everything, all others take the table's policy.

    Raises ServiceRefusedError when a run by hand was given what a service sets itself, and what the manager's client
    raises: without the policy nothing may run, for a clean would remove by Hudi's retention instead of the table's.
    """
    if is_manager_run(run_id):
        return given
    owned = find_owned_option(given.hudi_options)
    if owned is not None:
        raise ServiceRefusedError(f"table {table.base_path}: hudi_options: {owned}")
    return ask_settings(hook, table, service).under(given)


def ask_settings(hook: LakeHook, table: TableReader, service: Service) -> TableSettings:
    """Return what the table's policy says of a service, as the manager reads the tables file now."""
    said = hook.find_policy(table.base_path, table.properties().name, service)
    return TableSettings(
        hudi_options=parse_settings(said["hudi_options"], "hudi_options"),
        spark_conf=parse_settings(said["spark_conf"], "spark_conf"),
        conflict=parse_settings(said["conflict"], "conflict"),
        engine=str(said["engine"]),
        spark_conn_id=str(said["spark_conn_id"]),
        timeout_s=float(said["timeout_s"]),
    )
