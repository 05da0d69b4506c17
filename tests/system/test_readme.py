"""README's *Try it*, line by line in a fresh clone: its last command shows a compaction that is done."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from local_stack.processes import free_port, wait_until

pytestmark = [pytest.mark.system, pytest.mark.soak(covered_by="tests/system/test_end_to_end.py")]

ROOT = Path(__file__).parents[2]
SERVE = "airflow standalone"
INSTALL_S = 1200
PATIENCE_S = 600


def terminals() -> list[str]:
    """Return what README has a reader type, terminal by terminal."""
    section = re.search(r"^## Try it$(.*?)^## ", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert section is not None
    return re.findall(r"^```sh\n(.*?)^```$", section.group(1), re.DOTALL | re.MULTILINE)


@pytest.fixture
def clone() -> Iterator[Path]:
    folder = ROOT / ".work" / "system-tests" / "readme"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class Shell:
    """Runs a terminal's lines in the clone, without the settings of the Airflow that the tests run in."""

    def __init__(self, clone: Path) -> None:
        self.clone = clone
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON", "SPARK"))
        }
        self.env = kept | {"LAKE_TRY_PORT": str(free_port())}
        self.servers: subprocess.Popen[bytes] | None = None

    def run(self, lines: str, timeout_s: float) -> str:
        """Run lines to their end; return what they printed."""
        command = ["bash", "-ec", lines]
        done = subprocess.run(
            command, cwd=self.clone, env=self.env, check=False, timeout=timeout_s, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{lines}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    def serve(self, lines: str) -> None:
        """Run lines that do not end, in a process group of their own."""
        with (self.clone / "try" / "airflow.log").open("wb") as log:
            self.servers = subprocess.Popen(
                ["bash", "-ec", lines],
                cwd=self.clone,
                env=self.env,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self) -> None:
        """End what serves, as Ctrl-C does, and then for certain."""
        if self.servers is None:
            return
        for number in (signal.SIGINT, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.servers.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.servers.wait(30)


@pytest.fixture
def shell(clone: Path) -> Iterator[Shell]:
    shell = Shell(clone)
    yield shell
    shell.stop()


def test_readme_alone_leads_to_a_completed_compaction(shell: Shell) -> None:
    first, second = terminals()
    settings, *steps = first.splitlines()
    assert steps.pop().startswith(SERVE)
    shell.run("\n".join([settings, *steps]), INSTALL_S)
    shell.serve(f"{settings}\nexec {SERVE}")
    wait_until(lambda: is_up(shell), PATIENCE_S, "the API server", [])
    shown = shell.run(second, PATIENCE_S)
    assert re.search(r"^compaction +(due|not due)", shown, re.MULTILINE), shown
    ask = f"{settings}\nairflow lake runs orders -o json 2>/dev/null"
    until_s = time.monotonic() + PATIENCE_S
    while not (done := [run for run in json.loads(shell.run(ask, 120)) if run["state"] == "done"]):
        assert time.monotonic() < until_s, "no service was completed"
        time.sleep(5)
    assert {run["service"] for run in done} >= {"compaction"}
    timeline = shell.clone / "try" / "lake" / "orders" / ".hoodie" / "timeline"
    assert [path for path in timeline.iterdir() if path.name.endswith(".commit")]


def is_up(shell: Shell) -> bool:
    url = f"http://127.0.0.1:{shell.env['LAKE_TRY_PORT']}/api/v2/monitor/health"
    return subprocess.run(["curl", "-sf", "-o", os.devnull, url], check=False).returncode == 0
