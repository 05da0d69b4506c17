"""How changes are written besides JSON: Avro, Protobuf and Parquet, with the types of the table's own Avro schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from airflow_lake_provider.replication.change import ChangeMode, RowTypes

if TYPE_CHECKING:
    from airflow_lake_provider.replication.change import Change, CommitRef


class Printer(Protocol):
    """Prints the changes of commits with one schema."""

    def print_key(self, change: Change) -> bytes:
        """Return the key of a change's record. Raises RecordRefusedError."""

    def print(self, change: Change, commit: CommitRef) -> bytes:
        """Return the message of a change. Raises RecordRefusedError."""


class TypedFormat:
    """Prints changes of one stream, by a printer for each schema of the table."""

    def __init__(self, mode: ChangeMode) -> None:
        self.mode = mode
        self._schema_text = ""
        self._printer: Printer | None = None

    def make_printer(self, types: RowTypes, key: str) -> Printer:
        """Return what prints rows of these types; `key` is one of their keys."""
        raise NotImplementedError

    def message_of(self, change: Change, commit: CommitRef, schema: str) -> bytes | None:
        """Return the message; None is a tombstone. `schema` is the table's Avro schema as the commit wrote it."""
        if self.mode is ChangeMode.LATEST and change.after is None:
            return None
        return self._printer_of(change, schema).print(change, commit)

    def key_of(self, change: Change, schema: str) -> bytes:
        """Return the key of a change's record: equal bytes for equal keys under one schema of keys."""
        return self._printer_of(change, schema).print_key(change)

    def _printer_of(self, change: Change, schema: str) -> Printer:
        if self._printer is None or schema != self._schema_text:
            self._printer = self.make_printer(RowTypes(schema), change.key)
            self._schema_text = schema
        return self._printer
