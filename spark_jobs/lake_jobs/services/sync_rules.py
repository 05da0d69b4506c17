"""What a sync of a table with a catalog is asked for, what Hudi's tool gets, and what its failures call for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import LAKE_PREFIX, SYNC_DATABASE, SYNC_METASTORE, SYNC_TABLE, FailureKind
from airflow_lake_provider.shared.catalog_names import describe_catalog, find_name_problem, name_in_catalog, tool_of
from airflow_lake_provider.shared.hudi_settings import (
    SYNC_BASE_PATH,
    SYNC_DATABASE_NAME,
    SYNC_METASTORE_URIS,
    SYNC_PARTITION_FIELDS,
    SYNC_TABLE_NAME,
    TABLE_FILE_FORMAT,
    TABLE_PARTITION_FIELDS,
    WRITE_URL_ENCODING,
)
from lake_jobs.driver.failure import describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lake_jobs.driver.failure import Cause

EXTRACTOR = "hoodie.datasource.hive_sync.partition_extractor_class"
INCREMENTAL = "hoodie.meta.sync.incremental"
MODE = "hoodie.datasource.hive_sync.mode"
CLIENT_LIMITS = {
    "hive.metastore.client.socket.timeout": "120s",
    "hive.metastore.connect.retries": "3",
}
"""How long Hive's client waits, unless the job's Spark settings say it: a run must not hang for hours."""


OF_TABLE = frozenset(
    {
        TABLE_FILE_FORMAT,
        TABLE_PARTITION_FIELDS,
        "hoodie.datasource.write.hive_style_partitioning",
        WRITE_URL_ENCODING,
    }
)
"""What a sync takes from `hoodie.properties`, whose content any writer chooses: no class, no server, no property of the
catalog's table."""


@dataclass(frozen=True, slots=True)
class Registration:
    """Where a table is registered."""

    base_path: str
    tool: str
    metastore: str
    """Empty: that of the jobs' `hive-site.xml`, or a catalog that only the tool knows."""
    database: str
    name: str
    options: Mapping[str, str]
    """Hudi's own settings for the table."""

    @property
    def where(self) -> str:
        """The catalog and the table there, for people."""
        return f"{self.database}.{self.name} in {describe_catalog(self.metastore, self.options)}"


def read_registration(base_path: str, options: Mapping[str, str]) -> Registration:
    """Return what a request's options ask for. Raises ServiceRefusedError for what is no name of a table."""
    name = name_in_catalog(base_path, options.get(SYNC_TABLE, ""))
    database = options.get(SYNC_DATABASE, "default").lower()
    problem = find_name_problem(name) or find_name_problem(database)
    if problem:
        raise ServiceRefusedError(f"table {base_path}: {problem}")
    hudi = {key: value for key, value in options.items() if not key.startswith(LAKE_PREFIX)}
    return Registration(base_path, tool_of(hudi), options.get(SYNC_METASTORE, ""), database, name, hudi)


def tool_settings(registration: Registration, table_config: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of Hudi's tool, of which the table's own properties say what its folders are like, no more.

    All partitions are compared: a run follows a change, and then also repairs what others did to the catalog.
    """
    settings = {
        **{key: value for key, value in table_config.items() if key in OF_TABLE},
        MODE: "hms",
        INCREMENTAL: "false",
        **registration.options,
        SYNC_BASE_PATH: registration.base_path,
        SYNC_DATABASE_NAME: registration.database,
        SYNC_TABLE_NAME: registration.name,
        SYNC_PARTITION_FIELDS: partition_columns(table_config.get(TABLE_PARTITION_FIELDS, "")),
    }
    return settings | ({SYNC_METASTORE_URIS: registration.metastore} if registration.metastore else {})


def partition_columns(fields: str) -> str:
    """Return the columns of a table's partition fields; some key generators name a kind with each (`ts:TIMESTAMP`)."""
    return ",".join(field.partition(":")[0].strip() for field in fields.split(",") if field.strip())


def find_stranger(registration: Registration, name: str, location: str, table_path: str) -> str:
    """Return why a name in the catalog must not be used; empty where it is free or this table's.

    Hudi's tool would make a table of another place, of whatever kind, into this one. `location` is that of the
    catalog's table, `table_path` this one's, both without scheme and host; an empty location is no table.
    """
    if not location or location.rstrip("/") == table_path.rstrip("/"):
        return ""
    return (
        f"table {registration.base_path}: {registration.database}.{name} in "
        f"{describe_catalog(registration.metastore, registration.options)} is another table, at {location}: Hudi's "
        "sync would replace it; set sync.table or sync.database, or drop it there if it is this table's former place"
    )


_AWAY = ("ConnectException", "UnknownHostException", "NoRouteToHostException", "Could not connect to meta store")
_SLOW = ("SocketTimeoutException", "Read timed out")
_FORBIDDEN = ("AccessControlException", "AuthorizationException", "Permission denied", "AccessDenied", "No privilege")
_OTHER_TYPES = "types incompatible with the existing columns"
_OTHER_PARTITIONS = "Invalid partition key & values"


def explain_failure(registration: Registration, causes: Sequence[Cause]) -> tuple[FailureKind, str]:
    """Return what a failure calls for, and in words what failed where and what to do."""
    said = "\n".join(f"{cause.class_name}: {cause.message}" for cause in causes)
    kind = FailureKind.OTHER
    advice = "the run is tried again"
    if any(sign in said for sign in _AWAY):
        kind = FailureKind.INFRASTRUCTURE
        advice = "it does not answer: check sync.metastore, and that it runs; the run is tried again"
    elif any(sign in said for sign in _SLOW):
        kind = FailureKind.INFRASTRUCTURE
        advice = (
            "it did not answer in time; the run is tried again, with more time after "
            "spark_conf: {spark.hadoop.hive.metastore.client.socket.timeout: 600s}"
        )
    elif any(sign in said for sign in _FORBIDDEN):
        kind = FailureKind.REFUSED
        advice = "grant the jobs' user the right to create and alter tables there"
    elif _OTHER_TYPES in said:
        kind = FailureKind.REFUSED
        advice = (
            "a column has another type there, and it changes none: drop the table in the catalog (the data stays); "
            "the next run registers it with its present columns"
        )
    elif _OTHER_PARTITIONS in said:
        kind = FailureKind.REFUSED
        advice = f"the partitions' folders are not one for each partition column: set {EXTRACTOR} in hudi_options"
    return kind, f"table {registration.base_path}: {registration.where}: {describe(causes)}; {advice}"
