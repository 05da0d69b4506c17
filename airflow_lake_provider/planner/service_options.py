"""The Hudi settings by which a table's policy travels to a service that nobody decided upon: a run by hand. Pure."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.indexing.index_spec import parse_indexes
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.archive import archive_options
from airflow_lake_provider.planner.clean import clean_options
from airflow_lake_provider.planner.indexing import index_job_options
from airflow_lake_provider.planner.log_compaction import log_compaction_options
from airflow_lake_provider.planner.ttl import ttl_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.policies import TablePolicy


def service_options(service: Service, policy: TablePolicy) -> Mapping[str, str]:
    """Return what the policy says of a service as settings of its job.

    Raises ConfigError for an unknown index, and ServiceRefusedError for a clean where cleaning is switched off: then
    others clean the table, by a retention that is not known here, and what is cleaned does not come back.
    """
    if service is Service.CLEAN:
        if not policy.clean.enabled:
            raise ServiceRefusedError(
                "clean.enabled: false says that others clean this table, by a retention that is not known here; where "
                "it is to be cleaned by hand alone, set clean: {enabled: true, commits: null, retained_commits: ...}"
            )
        return clean_options(policy.clean)
    if service is Service.ARCHIVE:
        # The archiver keeps what the cleaner retains, by the settings that it is given.
        return {**clean_options(policy.clean), **archive_options(policy.archive)}
    if service is Service.TTL and policy.ttl.retained_days is not None:
        return ttl_options(policy.ttl)
    if service is Service.LOGCOMPACTION and policy.logcompaction.log_files is not None:
        return log_compaction_options(policy.logcompaction.log_files)
    if service is Service.INDEXING:
        return index_job_options(parse_indexes(policy.indexing.indexes), policy.indexing)
    return MappingProxyType({})
