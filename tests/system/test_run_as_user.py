"""Tasks of another user by sudo, as `run_as_user` and `[core] default_impersonation` start them."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from local_stack.airflow import LocalAirflow
from local_stack.postgres import LocalPostgres
from local_stack.writer_process import StandingWriter
from tests.system.conftest import LOCK_OPTIONS, make_airflow

USER = "postgres"
"""A user that a machine of the tests has, and that owns nothing here."""
SUDOERS = "Defaults env_reset\nDefaults env_delete -= PYTHONPATH\nroot ALL=(ALL:ALL) ALL\n"
"""Without the `secure_path` of Debian, which has no spark-submit; the code of this checkout is on PYTHONPATH."""
ROOTS_HOME = Path("/root")

pytestmark = [
    pytest.mark.system,
    pytest.mark.soak(covered_by="tests/unit/execution/engines/test_shared_job_files.py"),
    pytest.mark.skipif(
        os.geteuid() != 0
        or not all(shutil.which(name) for name in ("sudo", "unshare"))
        or USER not in {entry.pw_name for entry in pwd.getpwall()},
        reason=f"needs root, sudo, unshare and a user {USER}",
    ),
]


@dataclass
class Impersonating(LocalAirflow):
    """An Airflow whose processes have the sudoers of this test, and a Python that other users may run."""

    def _program(self) -> list[str]:
        python = Path(sys.base_prefix)
        lines = ["place=$(mktemp -d)", "mount -t tmpfs lake $place"]
        lines += [f"printf %s {shlex.quote(SUDOERS)} > $place/sudoers", "chmod 440 $place/sudoers"]
        lines += ["mount --bind $place/sudoers /etc/sudoers"]
        if python.is_relative_to(ROOTS_HOME):
            lines += ["mkdir $place/python", f"mount --bind {python} $place/python"]
            lines += [f"mount -t tmpfs -o mode=755 lake {ROOTS_HOME}", f"mkdir -p {python}"]
            lines += [f"mount --bind $place/python {python}"]
        script = "\n".join([*lines, 'exec "$0" "$@"'])
        return ["unshare", "--mount", "sh", "-euc", script, *super()._program()]


@pytest.fixture
def airflow(postgres: LocalPostgres) -> Iterator[LocalAirflow]:
    made = make_airflow("run-as-user", postgres=postgres)
    airflow = Impersonating(**{field.name: getattr(made, field.name) for field in fields(made)})
    airflow.settings |= {"AIRFLOW__CORE__DEFAULT_IMPERSONATION": USER, "AIRFLOW__LAKE__RETRY_DELAY_S": "15"}
    (airflow.home / "tmp").chmod(0o1777)
    airflow.allowed_roots[0].chmod(0o777)
    try:
        airflow.start()
        yield airflow
    finally:
        airflow.stop()


def test_task_of_another_user_says_what_it_lacks_and_goes_on_with_it(airflow: LocalAirflow) -> None:
    writer = StandingWriter(airflow.home)
    table = {"name": "orders", "type": "MOR", "version": 9, "keys": 200, "rows": 40}
    table["base_path"] = str(airflow.allowed_roots[0] / "orders")
    callback = {"url": airflow.callback_url, "token": airflow.callback_token, "headers": {}}
    try:
        writer.wait_until_ready()
        airflow.wait_for_dags()
        for commit in range(3):
            writer.write(table, commit, callback, LOCK_OPTIONS)
    finally:
        writer.stop()
    airflow.wait_until(lambda: f"let user {USER} of this task write there" in log_of(airflow), 240, "the refusal")

    # Without the right to make the lock's file, it would wait for the lock.
    subprocess.run(["chmod", "-R", "a+rwX", str(airflow.allowed_roots[0])], check=True)
    group = pwd.getpwnam(USER).pw_gid
    work_dir = airflow.home / "lake"
    work_dir.mkdir(exist_ok=True)
    os.chown(work_dir, 0, group)
    work_dir.chmod(0o2770)
    airflow.wait_until(lambda: {run["state"] for run in airflow.service_runs()} == {"success"}, 240, "the compaction")
    (result,) = (work_dir / "jobs").rglob("result.json")
    assert result.owner() == USER
    assert "ended with code 0" in log_of(airflow)


def log_of(airflow: LocalAirflow) -> str:
    """Return the log of the first try; empty while there is none."""
    files = (airflow.home / "logs" / "dag_id=lake_table_service").rglob("attempt=1.log")
    return "".join(file.read_text(encoding="utf-8") for file in files)
