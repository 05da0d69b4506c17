"""Airflow's section `[lake]` as a value, and what Airflow shows of it.

A field of `LakeSettings` is all that an option needs: its type, default and docstring make the parser, the errors, the
provider's entry (`airflow config list --section lake`) and the reference. A setting that could lose data is refused,
not warned about.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError

from airflow_lake_provider.config.kinds import Allowed, From0, From1, Seconds, Settings, find_kind, problem
from airflow_lake_provider.errors import ConfigError, LakeError
from airflow_lake_provider.hudi.base_path import find_second_name, normalise_root

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# Hudi sends this key when none is configured: it proves nothing about the sender.
HUDI_DEFAULT_CALLBACK_KEY = "hudi_write_commit_http_callback"

MIN_TOKEN_LENGTH = 8

NO_DIGEST = -1

SINK_GRACE_S = 259_200.0
"""A sink vanishes by mistake (a lost entry, an empty Variable, a renamed table) or on purpose, and a released hold
does not come back. Three days span a weekend; what they cost is the files that three more days replace."""


class TimelineServerMode(StrEnum):
    """Where readers take timelines from."""

    AUTO = "auto"
    """The timeline server while it answers, else the file system."""
    REQUIRED = "required"
    """The timeline server only: a reader waits while it does not answer."""
    OFF = "off"
    """The file system only; no process shares timelines or refreshes tables by itself."""


@dataclass(frozen=True, slots=True)
class Option:
    """What Airflow shows of an option beyond its type, default and description."""

    version_added: str = "0.1.0"
    example: str | None = None
    is_secret: bool = False


def _split(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.replace("\n", ",").split(",") if part.strip())


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _refuse_weak(tokens: tuple[str, ...]) -> tuple[str, ...]:
    if HUDI_DEFAULT_CALLBACK_KEY in tokens:
        raise problem(
            "holds Hudi's public default key; set hoodie.write.commit.callback.http.api.key of the writers to a secret "
            "of your own and put that here"
        )
    if any(len(token) < MIN_TOKEN_LENGTH for token in tokens):
        raise problem(f"holds a token of fewer than {MIN_TOKEN_LENGTH} characters")
    return tokens


def _refuse_outside(roots: tuple[str, ...]) -> tuple[str, ...]:
    for root in roots:
        try:
            normalise_root(root)
        except LakeError as error:
            raise problem(f"= {root!r}: {error}") from error
    doubled = find_second_name(roots)
    if doubled is not None:
        raise problem(
            f"= {doubled[0]!r} and {doubled[1]!r}: a table below them would have two names, with leases of its own for "
            "each; keep the one that writers use"
        )
    return roots


def _refuse_no_page(url: str) -> str:
    if url and not (url.startswith(("https://", "http://")) and "{page}" in url):
        raise problem(f"= {url!r}, allowed: an http address with {{page}}, as https://docs.example.org/lake/{{page}}/")
    return url


def _refuse_unnamed(entries: tuple[str, ...]) -> tuple[str, ...]:
    for entry in entries:
        root, _, conn_id = entry.rpartition("=")
        if not root or not conn_id:
            raise problem(f"= {entry!r}, allowed: <root>=<connection id>")
    return entries


Texts = Annotated[tuple[str, ...], BeforeValidator(_split)]
Tokens = Annotated[Texts, AfterValidator(_refuse_weak), Option(is_secret=True)]
Roots = Annotated[Texts, AfterValidator(_refuse_outside)]
DocsUrl = Annotated[str, AfterValidator(_refuse_no_page)]
Connections = Annotated[Texts, AfterValidator(_refuse_unnamed)]
Mode = Annotated[TimelineServerMode, BeforeValidator(_lower)]
SecondsFrom0 = Annotated[float, Field(ge=0, allow_inf_nan=False), Allowed("seconds from 0")]


class AirflowConf(Protocol):
    """Airflow's `conf`: that of `airflow.configuration` in servers, of `airflow.sdk.configuration` in tasks."""

    def get(self, section: str, key: str, *, fallback: str) -> str | None:
        """Return the text of an option."""


class LakeSettings(Settings):
    """The options of `[lake]`, as they are in force in one process."""

    # Airflow reads the fields at each start, most processes never a value: the parser is built when one asks.
    model_config = ConfigDict(strict=False, defer_build=True)

    callback_tokens: Tokens = ()
    """Secrets that writers send in HUDI-CALLBACK-KEY, separated by commas. Empty refuses every notice."""
    service_tokens: Tokens = ()
    """Secrets that Airflow's tasks send to the manager, separated by commas; without a connection of type lake they use
    the first."""
    tokens_file: str = ""
    """YAML file of further tokens, each with a name, roots and rights, as SHA-256 digests. Changes take effect without
    a restart."""
    allowed_roots: Roots = ()
    """Comma list of paths; the manager refuses tables outside. Empty refuses every table."""
    allowed_run_options: Texts = ()
    """Comma list of settings (* matches any text), such as spark.jars, that a run's conf may set besides those that
    every run may."""
    sink_roots: Roots = ()
    """Comma list of paths below which manual runs of replication may write with the sinks file and hudi, besides those
    of the tables file."""
    tables_file: str = ""
    """YAML file with the tables' policies; empty: the defaults hold for all."""
    tables_variable: str = "lake_tables"
    """Airflow Variable that overrides the tables file, in the same form; off reads none."""
    discovery_interval_s: Seconds = 3600.0
    """How often lake_discovery searches the roots of the tables file for new tables, seconds; in force once Airflow
    parses the DAG again."""
    max_notice_bytes: From1 = 64 * 1024 * 1024
    """Maximum body of a notice, bytes."""
    notices_per_s: From1 = 200
    """Notices that one API server accepts of one token, per second on average; of all tokens four times as many. A
    burst may have those of ten seconds."""
    notices_at_once: From1 = 32
    """Notices that one API server processes concurrently, at most half of one token; a large body counts as one per 4
    MiB. Others wait up to ten seconds."""
    # RFC-43's client can send no header, so its `extra_params` must hold the token.
    service_manager_needs_token: bool = True
    """Refuse requests of RFC-43's client without token=... in hoodie.table.service.manager.deploy.extra.params; False:
    such a request may only ask for the evaluation of a registered table."""
    loop_enabled: bool = True
    """Run the manager's loop in this API server."""
    loop_process: bool = True
    """Run the loop in a process of its own, so that evaluations take no time from requests; False: in the API
    server's."""
    bound_airflow_requests: bool = True
    """Limit the concurrent Airflow requests of an API server to two thirds of its pool of database connections (on
    SQLite to one that writes): with all in use, Airflow 3.3 blocks itself for 30 s."""
    loop_interval_s: Seconds = 1.0
    """Longest pause between two passes of the loop, seconds."""
    claim_lease_s: Seconds = 60.0
    """How long the loop may take to evaluate a table, seconds."""
    # Long, so that a running job survives ten minutes without any API server; renewals are frequent all the same.
    executor_lease_s: Seconds = 900.0
    """How long an executor that vanished on another host blocks the next one, seconds; a running job ends when the
    manager has not answered for 110 s less."""
    manager_patience_s: SecondsFrom0 = 600.0
    """How long tasks repeat requests to a manager that does not answer, seconds."""
    sink_grace_s: Seconds = SINK_GRACE_S
    """How long a replication sink that is no longer configured holds files, seconds."""
    heartbeat_timeout_s: Seconds = 600.0
    """Silence after which the server refreshes a table without a notice, seconds."""
    heartbeat_max_s: Seconds = 21_600.0
    """Maximum of the same for tables whose writers announce commits, seconds; it follows the commit interval."""
    max_tables_in_memory: From1 = 10_000
    """Timelines that one server keeps in memory, at 8 KiB (1,000 instants) on average."""
    timeline_server: Mode = TimelineServerMode.AUTO
    """Where readers take timelines from: required (the server), off (the file system), auto (the server while it
    answers, else the file system)."""
    timeline_server_url: str = ""
    """Address of an `airflow lake timeline-server`; empty: the API servers share timelines."""
    timeline_snapshot_file: str = ""
    """File in which a server keeps its timelines between two starts, with .commits next to it; empty takes
    $AIRFLOW_HOME/lake, off keeps nothing."""
    timeline_refresh_threads: From1 = 8
    """Tables that a server refreshes concurrently."""
    timeline_verify_interval_s: Seconds = 60.0
    """How often a server lists a table whose folder shows no change, seconds."""
    storage_conn_ids: Connections = ()
    """Comma list of root=connection id: the Airflow connection (aws, hdfs, ...) for tables below a root."""
    manager_url: str = ""
    """Where tasks reach the manager; empty takes the host of [core] execution_api_server_url."""
    work_dir: str = ""
    """Folder that Spark's driver reaches, for job requests and results; empty takes $AIRFLOW_HOME/lake."""
    engine: str = "spark-submit"
    """What runs the jobs: spark-submit, warm (a standing Spark application), auto (warm for small work), in-process
    (tiny tables), flink (experimental: never tried with Hudi's Flink bundle), or one that another package registers."""
    warm_work_bytes: From0 = 256 * 1024 * 1024
    """With engine auto, work predicted to read more bytes gets a spark-submit of its own."""
    warm_at_once: From1 = 4
    """Tables that a standing application serves concurrently."""
    warm_idle_s: Seconds = 300.0
    """When a standing application without work ends, seconds."""
    warm_max_age_s: Seconds = 21_600.0
    """When a standing application takes no more work, seconds; it ends after its last item."""
    warm_patience_s: Seconds = 600.0
    """How long work waits for a standing application before it gets a spark-submit of its own, seconds."""
    streams_at_once: From0 = 0
    """Replication streams that the driver of lake_streams serves concurrently; 0: no driver, and lake_replication
    starts a Spark job for each due sink. The driver ends as a standing application does."""
    notifiers: Texts = ()
    """Comma list of dotted paths of what is called when a service fails for good or is ended at its deadline, or a
    table gets or loses a problem: notifier classes without arguments
    (airflow_lake_provider.notifications.webhook.LakeWebhookNotifier), instances, routes, or functions of the event."""
    digest_hour: int = NO_DIGEST
    """Hour, UTC, from which the notifiers get the daily digest of all problems; -1: none."""
    docs_url: DocsUrl = ""
    """Where this documentation is served (https://docs.example.org/lake/{page}/), for the pages' links. Empty: they
    name the file."""
    spark_conn_id: str = "spark_default"
    """Airflow connection of the Spark jobs."""
    replication_spark_conn_id: str = ""
    """Airflow connection of the jobs of replication; empty: spark_conn_id. The driver of lake_streams needs one of
    client mode."""
    spark_jars: str = ""
    """Comma list of jars for the jobs, with the Hudi bundle."""
    spark_packages: str = ""
    """Maven coordinates for the jobs, in place of spark_jars."""
    retry_delay_s: From0 = 30
    """Pause before a service task's first retry, seconds; it doubles each time."""
    max_active_services: From1 = 16
    """Services that may run concurrently, over all tables; a run between two tries does not count."""

    @classmethod
    def from_conf(cls, conf: AirflowConf, secrets: Collection[str] = ()) -> LakeSettings:
        """Return the settings that Airflow's configuration holds. Raises ConfigError that names the option.

        Of the secret options, only those in `secrets` are read: a process may have no right to the others, and Airflow
        may run a command for them.
        """
        names = [name for name in cls.model_fields if name in secrets or name not in SECRETS]
        return cls.from_options({name: conf.get("lake", name, fallback="") or "" for name in names})

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> LakeSettings:
        """Return the settings of an option's texts; absent and empty ones have their default. Raises ConfigError."""
        texts = {name: text.strip() for name, text in options.items() if name in cls.model_fields and text.strip()}
        try:
            return cls.model_validate(texts)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
        name = str(wrong["loc"][0])
        if wrong["type"] == "problem":
            raise ConfigError(f"[lake] {name} {wrong['ctx']['message']}")
        raise ConfigError(f"[lake] {name} = {texts[name]!r}, allowed: {find_kind(cls, (name,)).words}")


def _option_of(name: str) -> Option:
    return next((mark for mark in LakeSettings.model_fields[name].metadata if isinstance(mark, Option)), Option())


SECRETS = frozenset(name for name in LakeSettings.model_fields if _option_of(name).is_secret)
_KINDS = {bool: "boolean", int: "integer", float: "float"}


def airflow_options() -> dict[str, dict[str, Any]]:
    """Return the options as a provider describes them to Airflow."""
    found = {}
    for name, entry in LakeSettings.model_fields.items():
        option = _option_of(name)
        found[name] = {
            "description": " ".join((entry.description or "").split()),
            "version_added": option.version_added,
            "type": _KINDS.get(type(entry.default), "string"),
            "example": option.example,
            "default": _text_of(entry.default),
            "sensitive": option.is_secret,
        }
    return found


def _text_of(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(default)
    return str(int(default)) if isinstance(default, float) and default.is_integer() else str(default)
