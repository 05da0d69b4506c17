"""The `replication` setting of a table: a list of sinks, each with what it receives and how long it may hold back."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.scalar_kinds import SECONDS, OneOf, Text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.located import Located

DAY_S = 86_400.0
_STREAM = Text(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}", "up to 80 letters, digits, _, - and .")
_SINK = Text(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}", "the name of a sink: kafka, file, database, noop or one of your own")
_MODE = Text("changes|latest", "changes, latest")
_FORMATS: Mapping[str, OneOf] = MappingProxyType(
    {
        "kafka": OneOf(("json", "avro")),
        "file": OneOf(("json", "parquet")),
        "database": OneOf(("json",)),
        "noop": OneOf(("json",)),
    }
)


@dataclass(frozen=True, slots=True)
class ReplicationPolicy:
    """One sink of a table."""

    name: str
    """Names the stream together with the table; the sink's kind unless the entry says otherwise."""
    sink: str
    """Under which name the sink is registered."""
    mode: str = "changes"
    """`changes` (operation, row before and after) or `latest` (the row, or nothing; copy-on-write tables only)."""
    key: tuple[str, ...] = ()
    """Fields of the key; empty takes the table's record key."""
    ttl_s: float = DAY_S
    """A sink that makes no progress for so long holds nothing back any more, and begins with a new snapshot."""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What else the entry says: the sink's own settings. `conn_id` names an Airflow connection with more of them."""


@dataclass(frozen=True, slots=True)
class SinkEntries:
    """The kind of the `replication` setting."""

    def parse(self, located: Located, name: str) -> tuple[ReplicationPolicy, ...]:
        """Return the sinks. What a sink's own settings may be is known to the sink, which checks them in its run."""
        if not isinstance(located.value, list):
            raise located.error(f"{name} must be a list of sinks")
        policies = tuple(_parse_entry(item) for item in located.value)
        names = [policy.name for policy in policies]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise located.error(f"two sinks are named {twice!r}: give one of them another name")
        return policies

    def schema(self) -> dict[str, Any]:
        """Return the same as JSON schema."""
        entry = {
            "type": "object",
            "properties": {
                "name": _STREAM.schema(),
                "sink": _SINK.schema(),
                "mode": _MODE.schema(),
                "key": {"type": "array", "items": {"type": "string"}},
                "ttl_s": SECONDS.schema(),
            },
            "required": ["sink"],
            # Formats of one's own sinks are for those to check.
            "allOf": [
                {"if": {"properties": {"sink": {"const": sink}}}, "then": {"properties": {"format": form.schema()}}}
                for sink, form in _FORMATS.items()
            ],
            "additionalProperties": {"type": ["string", "number", "boolean"]},
        }
        return {"type": "array", "items": entry}


def _parse_entry(located: Located) -> ReplicationPolicy:
    if not isinstance(located.value, dict) or "sink" not in located.value:
        raise located.error("an entry of replication must be a mapping with sink")
    body = dict(located.value)
    sink = _SINK.parse(body.pop("sink"), "sink")
    named = body.pop("name", None)
    name = _STREAM.parse(named, "name") if named is not None else sink
    mode, key, ttl_s = (body.pop(part, None) for part in ("mode", "key", "ttl_s"))
    if "format" in body and sink in _FORMATS and _FORMATS[sink].parse(body["format"], "format") == "json":
        # What each sink writes unless it is told otherwise.
        del body["format"]
    if key is not None and not _is_list_of_texts(key):
        raise key.error("key must be a list of fields")
    for option, item in body.items():
        if item.value is None or isinstance(item.value, (dict, list)):
            raise item.error(f"{option} is {item.text!r}, allowed: a text, a number, true or false")
    return ReplicationPolicy(
        name=name,
        sink=sink,
        mode=_MODE.parse(mode, "mode") if mode is not None else "changes",
        key=tuple(item.value for item in key.value) if key is not None else (),
        ttl_s=SECONDS.parse(ttl_s, "ttl_s") if ttl_s is not None else DAY_S,
        options=MappingProxyType({option: item.text for option, item in body.items()}),
    )


def _is_list_of_texts(located: Located) -> bool:
    return isinstance(located.value, list) and all(isinstance(item.value, str) for item in located.value)
