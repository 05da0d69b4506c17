"""`airflow lake init --hudi-defaults`: one file connects writers whose jobs set nothing, and leaves the services be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from airflow_lake_provider.cli.writer_settings import FILE_LOCK, hudi_defaults_text, writer_options
from local_stack.webhook_receiver import webhook_receiver

pytestmark = pytest.mark.soak(covered_by="tests/unit/cli/test_writer_settings.py")

WRITER = Path(__file__).parent / "plain_writer.py"


def environment(folder: Path, url: str) -> dict[str, str]:
    """Return the environment of a cluster whose drivers read a `hudi-defaults.conf`."""
    folder.mkdir()
    text = hudi_defaults_text(writer_options(url, FILE_LOCK))
    (folder / "hudi-defaults.conf").write_text(text, encoding="utf-8")
    return {**os.environ, "HUDI_CONF_DIR": str(folder), "PYTHONPATH": str(ROOT)}


def actions_of(table: Path) -> set[str]:
    """Return the kinds of completed instants."""
    found = (path for path in (table / ".hoodie" / "timeline").iterdir() if path.is_file() and path.name[0] != ".")
    return {path.suffix for path in found if "_" in path.stem}


def test_writers_that_set_nothing_notify_take_the_lock_and_run_no_service(tmp_path: Path) -> None:
    with webhook_receiver() as manager:
        env = environment(tmp_path / "conf", f"http://127.0.0.1:{manager.server_port}/v1/hoodie/callback")
        subprocess.run([sys.executable, str(WRITER), str(tmp_path)], env=env, cwd=ROOT, check=True, timeout=600)
    # One commit of each table was not announced: its job had switched the callback off.
    assert [body["tableName"] for _, _, body in manager.posts] == ["frame"] * 7 + ["by_sql"] * 2
    assert {path for path, _, _ in manager.posts} == {"/v1/hoodie/callback"}
    for name in ("frame", "by_sql"):
        assert actions_of(tmp_path / name) == {".deltacommit"}
        assert (tmp_path / name / ".hoodie" / ".heartbeat").is_dir()


def test_services_do_as_ever_where_their_driver_reads_the_file_too(tmp_path: Path) -> None:
    env = environment(tmp_path / "conf", "http://127.0.0.1:9/v1/hoodie/callback")
    tests = ROOT / "tests" / "integration" / "spark" / "test_every_service.py"
    command = [sys.executable, "-m", "pytest", str(tests), "-q", "-m", "not soak", "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=env, cwd=ROOT, check=False, timeout=1200, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
