"""The wheel holds what an installation without a checkout needs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]


def test_wheel_holds_dags_jobs_and_migrations(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        declared = archive.read(entry_points).decode()
    package = "airflow_lake_provider"
    shipped = {f"{package}/_shipped/dags/{path.name}" for path in (ROOT / "dags").glob("*.py")}
    shipped |= {f"{package}/_shipped/{path.relative_to(ROOT)}" for path in (ROOT / "spark_jobs").rglob("*.py")}
    shipped |= {f"{package}/manager/db/alembic.ini", f"{package}/manager/db/migrations/env.py"}
    assert names >= shipped
    assert not any(name.startswith(("tests/", "demo/", "local_stack/")) for name in names)
    assert "airflow_lake_provider.plugins.lake_plugin:LakePlugin" in declared
