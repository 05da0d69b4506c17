"""Jobs that are processes: real ones, of Python and shell, killed for real."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_lake_provider.errors import EngineAwayError, EngineError
from airflow_lake_provider.execution.engines.engine import Handle
from airflow_lake_provider.execution.engines.local_process import LocalJob, find_marked, kill_marked
from airflow_lake_provider.job_contract import EXIT_NO_CLUSTER
from tests.support.engine_jobs import engine_job
from tests.support.patience import patient

# A family as spark-submit's: a parent, and a child with the same arguments.
FAMILY = (
    "import subprocess, sys, time\nif len(sys.argv) == 2: subprocess.Popen([*sys.orig_argv, 'child'])\ntime.sleep(60)"
)


def wait_for(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_output_is_logged_and_a_bad_end_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    local, job = LocalJob(), engine_job(tmp_path)
    with caplog.at_level(logging.INFO):
        handle = local.start(job, [sys.executable, "-c", "print('working'); raise SystemExit(3)", job.request_path])
        local.wait(handle)
    assert "working" in caplog.text
    assert "ended with code 3" in caplog.text


def test_driver_whose_cluster_is_away_has_given_no_verdict(tmp_path: Path) -> None:
    local, job = LocalJob(), engine_job(tmp_path)
    command = [sys.executable, "-c", f"raise SystemExit({EXIT_NO_CLUSTER})", job.request_path]
    handle = local.start(job, command)
    with pytest.raises(EngineAwayError, match="cluster does not answer"):
        local.wait(handle)


def test_missing_program_of_a_task_that_sudo_runs_names_sudos_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    with pytest.raises(EngineError, match=r"on the worker's PATH\?"):
        LocalJob().start(engine_job(tmp_path), ["no-such-program"])
    monkeypatch.setenv("SUDO_USER", "airflow")
    with pytest.raises(EngineError, match="secure_path"):
        LocalJob().start(engine_job(tmp_path), ["no-such-program"])


def test_whole_family_ends_and_the_waiting_thread_with_it(tmp_path: Path) -> None:
    local, job = LocalJob(), engine_job(tmp_path)
    handle = local.start(job, [sys.executable, "-c", FAMILY, job.request_path])
    wait_for(lambda: len(list(find_marked(job.request_path))) == 2)
    waiter = threading.Thread(target=local.wait, args=(handle,))
    waiter.start()
    local.stop(handle)
    waiter.join(timeout=20)
    assert not waiter.is_alive()
    assert list(find_marked(job.request_path)) == []
    local.stop(handle)


def test_job_of_a_dead_process_is_ended_by_another(tmp_path: Path) -> None:
    job, bystander = engine_job(tmp_path), engine_job(tmp_path, try_number=2)
    orphans = [subprocess.Popen([sys.executable, "-c", FAMILY, path]) for path in (job.request_path,)]
    stranger = subprocess.Popen([sys.executable, "-c", FAMILY, bystander.request_path, "alone"])
    wait_for(lambda: len(list(find_marked(job.request_path))) == 2)
    LocalJob().stop(Handle(job))
    LocalJob().wait(Handle(job))
    assert [orphan.wait(timeout=20) for orphan in orphans] == [-15]
    assert stranger.poll() is None
    assert kill_marked(bystander.request_path) == 1
    assert stranger.wait(timeout=20) == -15


def test_driver_is_asked_to_end_and_killed_when_it_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, ended = engine_job(tmp_path), tmp_path / "ended"
    polite = f"import signal, sys, time; signal.signal(15, lambda *_: (open({str(ended)!r}, 'w'), sys.exit(75)))"
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN)"
    waits = "; open(sys.argv[1] + '.ready', 'w'); time.sleep(60)"
    ends = []
    for program, patience_s in ((polite, 60.0), (f"import sys; {deaf}", 0.5)):
        monkeypatch.setattr("airflow_lake_provider.execution.engines.local_process.TERM_PATIENCE_S", patience_s)
        Path(job.request_path).parent.mkdir(parents=True, exist_ok=True)
        ready = Path(f"{job.request_path}.ready")
        process = subprocess.Popen([sys.executable, "-c", program + waits, job.request_path])
        wait_for(ready.exists)
        assert kill_marked(job.request_path) == 1
        ends.append(process.wait(timeout=20))
        ready.unlink()
    assert ends == [75, -9]
    assert ended.exists()


def test_what_is_no_driver_is_killed_without_being_asked(tmp_path: Path) -> None:
    """A JVM that is asked to end goes on writing meanwhile."""
    job = engine_job(tmp_path)
    # It waits by itself: a child has its parent's arguments until it is another program, and would count as well.
    process = subprocess.Popen(["sh", "-c", "trap '' TERM; read line", "java", job.request_path], stdin=subprocess.PIPE)
    wait_for(lambda: bool(list(find_marked(job.request_path))))
    began_s = time.monotonic()
    assert kill_marked(job.request_path) == 1
    with process:
        assert process.wait(timeout=20) == -9
    assert time.monotonic() - began_s < patient(5)


def test_child_that_outlives_its_parent_ends_with_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM whose Python is gone goes on with what it was doing."""
    monkeypatch.setattr("airflow_lake_provider.execution.engines.local_process.FAMILY_PATIENCE_S", 0.2)
    local, job = LocalJob(), engine_job(tmp_path)
    child_only = "len(sys.argv) == 2 or (time.sleep(60), open(sys.argv[1] + '.ended', 'w'))"
    program = FAMILY.replace("time.sleep(60)", child_only)
    local.wait(local.start(job, [sys.executable, "-c", program, job.request_path]))
    assert list(find_marked(job.request_path)) == []
    # It was killed, although it has the output open for as long as it lives.
    assert not Path(f"{job.request_path}.ended").exists()


def test_last_line_without_an_end_and_bytes_that_are_no_text_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local, job = LocalJob(), engine_job(tmp_path)
    program = "import sys; sys.stdout.buffer.write(b'one\\xff\\n' + b'x' * 100_000 + b'\\nlast')"
    with caplog.at_level(logging.INFO):
        local.wait(local.start(job, [sys.executable, "-c", program, job.request_path]))
    assert [len(message) for message in caplog.messages[:3]] == [4, 100_000, 4]
    assert caplog.messages[2] == "last"


def test_job_of_another_host_is_left_to_its_own_watch(tmp_path: Path) -> None:
    job = engine_job(tmp_path, host="another-host")
    process = subprocess.Popen([sys.executable, "-c", FAMILY, job.request_path, "alone"])
    LocalJob().stop(Handle(job))
    assert process.poll() is None
    process.kill()
    process.wait()


def test_program_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"cannot run no-such-submit.*PATH"):
        LocalJob().start(engine_job(tmp_path), ["no-such-submit"])
