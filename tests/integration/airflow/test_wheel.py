"""The wheel holds what an installation without a checkout needs; the tutorial works in a fresh environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.fixture_tables import unpack

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


# --- docs/tutorial.md, with the built wheel, a plain Airflow 3.3, and nothing of the checkout

TIMEOUT_S = 1800


class Host:
    """A host of its own: an environment, a home of Airflow, and a lake."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "venv" / "bin"
        self.home = folder / "airflow"
        self.lake = folder / "lake"
        self.home.mkdir()
        self.lake.mkdir()

    def env(self) -> dict[str, str]:
        kept = {
            key: os.environ[key] for key in ("TMPDIR", "UV_CACHE_DIR", "HTTPS_PROXY", "HTTP_PROXY") if key in os.environ
        }
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return kept | {"AIRFLOW_HOME": str(self.home), "PATH": path, "HOME": str(self.home)}

    def run(self, *words: str, expected: int = 0) -> str:
        done = subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=self.home,
            env=self.env(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == expected, f"{' '.join(words)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def install(self, wheel: Path) -> None:
        uv = Path(sys.executable).with_name("uv")
        for words in (
            ["venv", "-q", str(self.bin.parent), "--python", sys.executable],
            [
                "pip",
                "install",
                "-q",
                "--python",
                str(self.bin / "python"),
                "-c",
                str(ROOT / "constraints/airflow.txt"),
                wheel,
            ],
        ):
            subprocess.run([str(uv), *map(str, words)], check=True, timeout=TIMEOUT_S)


def section(text: str, name: str) -> str:
    """Return one of the texts that `init` prints."""
    (found,) = [part.partition("\n")[2] for part in text.split("--- for ") if part.startswith(name)]
    return found


@pytest.mark.soak
def test_tutorial_in_a_fresh_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    host = Host(tmp_path)
    host.install(wheel)
    tables = [unpack(name, host.lake).path for name in ("mor_v6", "cow_v9")]
    before = {path: path.stat().st_mtime_ns for table in tables for path in table.rglob("*")}

    host.run("airflow", "db", "migrate")
    first = host.run("airflow", "lake", "init", "--discover", str(host.lake), expected=1)
    assert next(line for line in first.splitlines() if " WRONG " in line).startswith("DAGs ")
    # The texts that it prints, as a person puts them in place.
    config = section(first, "airflow.cfg").replace("/etc/airflow/lake.yaml", str(host.home / "lake.yaml"))
    (host.home / "lake.yaml").write_text(section(first, "the tables file"))
    (host.home / "airflow.cfg").write_text(config)
    assert '"name": "dags-folder"' in config
    host.run("airflow", "lake", "tables-file", "--check", str(host.home / "lake.yaml"))

    host.run("airflow", "dag-processor", "--num-runs", "1")
    second = host.run("airflow", "lake", "init", "-o", "json", expected=1)
    checks = {row["check"]: row for row in json.loads(second[second.index("[\n  {") : second.rindex("\n]") + 2])}
    assert [checks[name]["state"] for name in ("Airflow", "database", "DAG bundles", "tokens", "tables file")] == [
        "ok"
    ] * 5
    assert "nothing would be started now" in host.run("airflow", "lake", "explain", str(tables[0]), "--dry-run")
    assert "hoodie.write.commit.callback.http.url=" in host.run(
        "airflow", "lake", "init", "--table", str(tables[0]), expected=1
    )
    # Observing changes nothing.
    assert {path: path.stat().st_mtime_ns for table in tables for path in table.rglob("*")} == before
