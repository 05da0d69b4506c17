"""The process's settings: `[lake]` of Airflow's configuration, as a value.

Who reads Airflow's configuration passes plain strings in (`settings_from_options`); a wrong setting raises ConfigError
that names the option and the allowed values. A setting that could lose data is refused, not warned about.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import ConfigError, LakeError
from airflow_lake_provider.hudi.base_path import normalise_root

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Hudi sends this key when nobody configured one: it proves nothing about the sender.
HUDI_DEFAULT_CALLBACK_KEY = "hudi_write_commit_http_callback"

MIN_TOKEN_LENGTH = 8

SINK_GRACE_S = 259_200.0
"""A sink vanishes by a slip (a lost entry, an empty Variable, a renamed table) or on purpose, and a released hold
does not come back. Three days span a weekend; what they cost is the files that three more days replace."""


class TimelineServerMode(StrEnum):
    """Where readers take timelines from."""

    AUTO = "auto"
    """The timeline server while it answers, else the file system."""
    REQUIRED = "required"
    """The timeline server only: a reader waits while it does not answer."""
    OFF = "off"
    """The file system only; no process shares timelines or looks at tables by itself."""


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """What one process needs to know. Durations in seconds, sizes in bytes."""

    callback_tokens: tuple[str, ...] = ()
    """Accepted values of the header HUDI-CALLBACK-KEY; several, so that a token can be changed without a gap."""
    service_tokens: tuple[str, ...] = ()
    """Accepted bearer tokens of Airflow's own tasks (connection type `lake`)."""
    allowed_roots: tuple[str, ...] = ()
    """Base paths must lie below one of these; empty refuses every notice."""
    tables_file: str = ""
    tables_variable: str = "lake_tables"
    """Airflow Variable that is laid over the tables file; `off` reads none."""
    max_notice_bytes: int = 64 * 1024 * 1024
    service_manager_needs_token: bool = True
    """RFC-43's client can send no header, so `extra_params` must hold `token=<callback token>`. When false, a request
    without one may ask for a look at a registered table, and nothing else."""
    loop_enabled: bool = True
    loop_interval_s: float = 1.0
    claim_lease_s: float = 60.0
    executor_lease_s: float = 900.0
    """Long, so that a running job bears ten minutes without any API server; renewals are frequent all the same."""
    sink_grace_s: float = SINK_GRACE_S
    """How long a sink that the tables file names no more still holds its table's files."""
    heartbeat_timeout_s: float = 600.0
    heartbeat_max_s: float = 21_600.0
    """The same for tables whose writers announce their commits; the pause follows the table's rhythm up to this."""
    max_tables_in_memory: int = 10_000
    timeline_server: TimelineServerMode = TimelineServerMode.AUTO
    timeline_server_url: str = ""
    """Where a timeline server of its own listens; empty: the API servers share timelines."""
    timeline_snapshot_file: str = ""
    """Where a server keeps what it knows between two starts; `off` keeps nothing."""
    timeline_look_threads: int = 8
    timeline_verify_interval_s: float = 60.0
    storage_conn_ids: tuple[str, ...] = ()
    """`<root>=<connection id>`: the connection that opens the tables below a root."""


def settings_from_options(options: Mapping[str, str]) -> LakeSettings:
    """Build settings from the strings of Airflow's `[lake]` section; absent and empty mean the default."""
    known = {entry.name for entry in fields(LakeSettings)}
    values: dict[str, Any] = {}
    for name, text in options.items():
        if name in known and text.strip():
            values[name] = _parse_option(name, text.strip())
    settings = replace(LakeSettings(), **values)
    _refuse_unsafe(settings)
    return settings


def _parse_option(name: str, text: str) -> Any:
    try:
        return _OPTION_PARSERS.get(name, str)(text)
    except ValueError as error:
        raise ConfigError(f"[lake] {name} = {text!r}: {error}") from error


def _positive_float(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError("expected a number above 0")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise ValueError("expected a whole number above 0")
    return value


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in {"true", "false", "1", "0", "yes", "no"}:
        raise ValueError("expected true or false")
    return lowered in {"true", "1", "yes"}


def _list(text: str) -> tuple[str, ...]:
    parts = text.replace("\n", ",").split(",")
    return tuple(part.strip() for part in parts if part.strip())


def _mode(text: str) -> TimelineServerMode:
    try:
        return TimelineServerMode(text.lower())
    except ValueError:
        raise ValueError("expected auto, required or off") from None


_OPTION_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "callback_tokens": _list,
    "service_tokens": _list,
    "allowed_roots": _list,
    "max_notice_bytes": _positive_int,
    "service_manager_needs_token": _boolean,
    "loop_enabled": _boolean,
    "loop_interval_s": _positive_float,
    "claim_lease_s": _positive_float,
    "executor_lease_s": _positive_float,
    "sink_grace_s": _positive_float,
    "heartbeat_timeout_s": _positive_float,
    "heartbeat_max_s": _positive_float,
    "max_tables_in_memory": _positive_int,
    "timeline_server": _mode,
    "timeline_look_threads": _positive_int,
    "timeline_verify_interval_s": _positive_float,
    "storage_conn_ids": _list,
}


def _refuse_unsafe(settings: LakeSettings) -> None:
    for entry in settings.storage_conn_ids:
        root, separator, conn_id = entry.rpartition("=")
        if not separator or not root or not conn_id:
            raise ConfigError(f"[lake] storage_conn_ids = {entry!r}: expected <root>=<connection id>")
    for option in ("callback_tokens", "service_tokens"):
        for token in getattr(settings, option):
            if token == HUDI_DEFAULT_CALLBACK_KEY:
                raise ConfigError(
                    f"[lake] {option} holds Hudi's public default key; set hoodie.write.commit.callback.http.api.key "
                    "of the writers to a secret of your own and put that here"
                )
            if len(token) < MIN_TOKEN_LENGTH:
                raise ConfigError(f"[lake] {option} holds a token of fewer than {MIN_TOKEN_LENGTH} characters")
    for root in settings.allowed_roots:
        try:
            normalise_root(root)
        except LakeError as error:
            raise ConfigError(f"[lake] allowed_roots = {root!r}: {error}") from error
