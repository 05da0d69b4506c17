"""A table by hand on which things were left behind."""

from __future__ import annotations

import json
import os

from tests.support.tables import HandMadeTable

NOW_MS = 2_000_000_000_000
HOUR_MS = 3_600_000

T = "20261121120005000"
LATER = "20261121120009000"
INDEX = {"indexPartitionInfos": [{"metadataPartitionPath": "record_index"}]}


class Patient(HandMadeTable):
    """A table on whose timeline things were left behind an hour ago, unless said otherwise."""

    def left(self, name: str, body: dict[str, object] | None = None, age_ms: int = HOUR_MS) -> None:
        file = self.path / ".hoodie" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("" if body is None else json.dumps(body))
        os.utime(file, ns=((NOW_MS - age_ms) * 10**6, (NOW_MS - age_ms) * 10**6))

    def left_instant(self, name: str, body: dict[str, object] | None = None, age_ms: int = HOUR_MS) -> None:
        # The plan of a service is never empty; a write's request always is.
        action, _, state = name.partition(".")[2].partition(".")
        is_plan = state == "requested" and action in {"compaction", "logcompaction", "clustering", "clean"}
        self.left(f"timeline/{name}", {} if is_plan and body is None else body, age_ms)

    def beats(self, instant: str) -> None:
        self.left(f".heartbeat/{instant}", age_ms=30_000)
