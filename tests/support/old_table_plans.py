"""A table of an old version with a plan of clustering."""

from __future__ import annotations

import json
from pathlib import Path

SLICES = [{"partitionPath": "p", "fileId": "a"}, {"partitionPath": "p", "fileId": "b"}]
CLUSTERING = {"operationType": "CLUSTER", "clusteringPlan": {"inputGroups": [{"slices": SLICES}]}}
OVERWRITE = {"operationType": "INSERT_OVERWRITE", "clusteringPlan": None}


def old_table(folder: Path, **plans: dict[str, object] | str) -> Path:
    """Return a table of version 6 with these pending replacecommits, by requested time; a text is written as it is."""
    hoodie = folder / ".hoodie"
    hoodie.mkdir()
    lines = {
        "hoodie.table.name": "orders",
        "hoodie.table.type": "COPY_ON_WRITE",
        "hoodie.table.version": "6",
        "hoodie.timeline.layout.version": "1",
    }
    text = "\n".join(f"{key}={value}" for key, value in lines.items())
    (hoodie / "hoodie.properties").write_text(text, encoding="utf-8")
    for time, plan in plans.items():
        body = plan if isinstance(plan, str) else json.dumps(plan)
        (hoodie / f"{time[1:]}.replacecommit.requested").write_text(body, encoding="utf-8")
        (hoodie / f"{time[1:]}.replacecommit.inflight").touch()
    return folder
