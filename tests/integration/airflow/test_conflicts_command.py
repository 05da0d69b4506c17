"""`airflow lake conflicts`, as Airflow's command line runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.airflow_command import run
from tests.support.fixture_tables import unpack
from tests.unit.conflict.fake_table import commit_body, marker

pytestmark = pytest.mark.integration

OLDER, YOUNGER, DEAD = "20991231000000001", "20991231000000002", "20991231000000003"


def test_conflicts_names_writers_file_groups_and_who_gives_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = unpack("mor_v9", tmp_path).path
    code, text = run(capsys, "conflicts", str(path))
    assert code == 0, "a pending compaction stands in no writer's way"
    assert "compaction, pending; 4 file groups" in text
    meta = path / ".hoodie"
    (meta / ".heartbeat").mkdir(exist_ok=True)
    for instant in (OLDER, YOUNGER, DEAD):
        (meta / "timeline" / f"{instant}.deltacommit.requested").touch()
        (meta / "timeline" / f"{instant}.deltacommit.inflight").write_bytes(commit_body([("Oslo", "f1-0")]))
        if instant != DEAD:
            (meta / ".heartbeat" / instant).touch()
    folder = meta / ".temp" / OLDER
    (folder / "Oslo").mkdir(parents=True)
    (folder / marker(OLDER, "Oslo", "f1-0")).touch()
    code, output = run(capsys, "conflicts", str(path), "-o", "json")
    rows = [row for row in json.loads(output) if row["role"] == "writer"]
    assert code == 1
    assert [(row["instant"], row["state"], bool(row["clashes"])) for row in rows] == [
        (OLDER, "live", False),
        (YOUNGER, "live", True),
        (DEAD, "no heartbeat", False),
    ]
    assert (rows[0]["markers"], rows[0]["marker_kind"]) == (1, "DIRECT")
    _, text = run(capsys, "conflicts", str(path))
    assert f"gives way: deltacommit {OLDER} is writing 1 file group: Oslo/f1-0" in text
    # The older one commits: its markers are gone, and the younger one is lost all the same.
    (folder / marker(OLDER, "Oslo", "f1-0")).unlink()
    (meta / ".heartbeat" / OLDER).unlink()
    (meta / "timeline" / f"{OLDER}_20991231000000009.deltacommit").write_bytes(commit_body([("Oslo", "f1-0")]))
    code, text = run(capsys, "conflicts", str(path))
    assert code == 1
    assert f"gives way: deltacommit {OLDER} has committed 1 file group: Oslo/f1-0" in text
