"""A run of replication by hand: the sink's entry in the tables file, and what the run's form sets over it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.arguments import parse_settings
from airflow_lake_provider.replication.change import ChangeMode

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIGURED = "configured"
"""The mode of a form that leaves it to the tables file."""
_AS_THEY_ARE = ("action", "rows", "seek_until")


def name_of(form: Mapping[str, Any]) -> str:
    """Return the name of the stream that a form means. Raises ConfigError when it names none."""
    name = str(form.get("name") or form.get("sink") or "")
    if not name:
        raise ConfigError("the run names no sink: give the name of one that the tables file has, or a sink")
    return name


def complete(form: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operator's arguments: those of the entry, as a scheduled run has them, and the form's over them.

    `entry` is the manager's answer, which has no sink where the tables file does not have the stream; one of an older
    release never has. Raises ConfigError.
    """
    name = name_of(form)
    wanted = str(form.get("sink") or "")
    options = parse_settings(form.get("options"), "options")
    configured = str(entry.get("sink") or "")
    names: Mapping[str, str] = entry.get("names") or {}
    if not configured:
        _require_new(form, name, options, names)
    elif wanted not in {"", configured}:
        raise ConfigError(
            f"name {name!r} is a sink {configured!r} in the tables file, and the run says {wanted!r}: leave the sink "
            "out, or give the new one a name of its own"
        )
    mode = str(form.get("mode") or CONFIGURED)
    return {
        "sink": configured or wanted,
        "name": name,
        "mode": (entry.get("mode") or ChangeMode.CHANGES.value) if mode == CONFIGURED else mode,
        "key": list(form.get("key") or entry.get("key") or ()),
        "options": {**parse_settings(entry.get("options"), "options"), **options},
        "spark_conf": {
            **parse_settings(entry.get("spark_conf"), "spark_conf"),
            **parse_settings(form.get("spark_conf"), "spark_conf"),
        },
        "ttl_s": form.get("ttl_s") or entry.get("ttl_s") or "",
        "max_hold_s": entry.get("max_hold_s"),
        "max_held_bytes": entry.get("max_held_bytes"),
        **{key: form.get(key) or "" for key in _AS_THEY_ARE},
    }


def _require_new(form: Mapping[str, Any], name: str, options: Mapping[str, str], names: Mapping[str, str]) -> None:
    """Require what a sink needs that the tables file does not have. Raises ConfigError."""
    known = ", ".join(f"{own} (sink {sink})" for own, sink in names.items()) or "none"
    wanted = form.get("sink")
    if not wanted:
        raise ConfigError(
            f"the tables file has no sink {name!r} of this table, and the run gives none: give sink and its options, "
            f"or the name of a known one: {known}"
        )
    # A run without a name and without settings means one of the file.
    if not form.get("name") and not options and wanted in names.values():
        raise ConfigError(
            f"the tables file has no sink {name!r} of this table; give the name of the one that is meant, of: {known}; "
            f"for a new one give name {name!r}"
        )
