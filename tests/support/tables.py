"""Tables made by hand on local disk: properties and timeline files only, as the reader needs them."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

MS_NS = 1_000_000


@dataclass(frozen=True)
class HandMadeTable:
    """A merge-on-read table of version 9; commit metadata is written as JSON, which the reader sniffs."""

    path: Path

    @classmethod
    def create(cls, path: Path, table_type: str = "MERGE_ON_READ", name: str = "orders") -> HandMadeTable:
        (path / ".hoodie" / "timeline").mkdir(parents=True)
        table = cls(path)
        table.write_properties(name, table_type=table_type)
        return table

    def write_properties(self, name: str, database: str = "", table_type: str = "MERGE_ON_READ") -> None:
        """Write hoodie.properties with what a table says of itself."""
        properties = {
            "hoodie.table.name": name,
            "hoodie.table.type": table_type,
            "hoodie.table.version": "9",
            "hoodie.timeline.layout.version": "2",
            "hoodie.table.timeline.timezone": "UTC",
            "hoodie.table.checksum": str(zlib.crc32(f"{database}.{name}".encode())),
        }
        if database:
            properties["hoodie.database.name"] = database
        text = "\n".join(f"{key}={value}" for key, value in properties.items())
        (self.path / ".hoodie" / "hoodie.properties").write_text(text, encoding="utf-8")

    def commit(self, second: int, *, file_id: str = "a", log_bytes: int = 100) -> str:
        """Add a completed delta commit with one log file; return its requested time."""
        requested = f"202611211200{second:02d}000"
        stat = {
            "fileId": file_id,
            "path": f"p/.{file_id}_0.log.{second}_0-1-0",
            "totalWriteBytes": log_bytes,
            "fileSizeInBytes": log_bytes,
        }
        body = {"operationType": "UPSERT", "partitionToWriteStats": {"p": [stat]}}
        self._add(f"{requested}_202611211200{second:02d}500.deltacommit", json.dumps(body))
        return requested

    def begin(self, requested: str) -> None:
        """Add a delta commit that is inflight."""
        for state in ("requested", "inflight"):
            self._add(f"{requested}.deltacommit.{state}", "")

    def complete(self, requested: str, completed: str, partition: str = "p") -> None:
        """Complete a delta commit with one row."""
        stat = {
            "fileId": "a",
            "path": f"{partition}/.a_0.log.{requested}_0-1-0",
            "totalWriteBytes": 100,
            "numInserts": 1,
        }
        body = {"operationType": "UPSERT", "partitionToWriteStats": {partition: [stat]}}
        self._add(f"{requested}_{completed}.deltacommit", json.dumps(body))

    def roll_back(self, requested: str) -> None:
        """Remove a delta commit that is inflight, as a rollback does."""
        for state in ("inflight", "requested"):
            (self.path / ".hoodie" / "timeline" / f"{requested}.deltacommit.{state}").unlink()

    def plan(self, second: int) -> str:
        """Add a requested compaction; return its requested time."""
        requested = f"202611211200{second:02d}000"
        self._add(f"{requested}.compaction.requested", "{}")
        return requested

    def _add(self, name: str, content: str) -> None:
        """Write a file of the timeline; the folder's time is later than before, also within one tick of its clock.

        Tests whose clock runs ahead take every time for settled.
        """
        timeline = self.path / ".hoodie" / "timeline"
        before_ns = timeline.stat().st_mtime_ns
        # A store shows a file when it is whole.
        part = timeline.with_name(f"{name}.part")
        part.write_text(content, encoding="utf-8")
        part.replace(timeline / name)
        if timeline.stat().st_mtime_ns < before_ns + MS_NS:
            os.utime(timeline, ns=(before_ns + MS_NS, before_ns + MS_NS))
