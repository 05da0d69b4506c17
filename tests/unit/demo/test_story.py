"""The demo's parts that decide what the viewer is shown: lines, the killed process, what counts as a delay."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from demo.gain import CommitTimes, QueryTimes, commit_times, parse_query
from demo.parts import KilledDriver
from demo.show import Show, TableLine
from local_stack.airflow import LocalAirflow
from local_stack.processes import ServerProcess, start, wait_until


def make_show(*, is_terminal: bool) -> tuple[Show, io.StringIO]:
    out = io.StringIO()
    return Show(Console(file=out, force_terminal=is_terminal, width=120), clock=lambda: 1.0), out


def line(commits: int, headline: str, log_bytes: int = 0) -> TableLine:
    return TableLine("orders", commits, log_bytes, "running", headline)


def test_table_that_has_not_changed_is_printed_once_where_there_is_no_terminal() -> None:
    show, out = make_show(is_terminal=False)
    show.open("The lake")
    for found in (line(1, "Healthy."), line(1, "Healthy.", 2048), line(2, "Compaction runs.", 2048)):
        show.update([found])
    show.close()
    assert [text.split("  ")[-1] for text in out.getvalue().splitlines()] == ["Healthy.", "Compaction runs."]
    assert "\x1b" not in out.getvalue()


def test_terminal_keeps_the_tables_below_what_happened() -> None:
    show, out = make_show(is_terminal=True)
    show.open("The lake at http://x")
    show.update([line(3, "Compaction runs.", 2048)])
    show.say("orders: kill -9")
    show.close()
    last = out.getvalue()[out.getvalue().rindex("orders: kill -9") :]
    assert "The lake at http://x" in last
    assert "Compaction runs." in last
    assert "2 KiB" in last


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the arguments of a compaction's job."""
    request = tmp_path / "airflow" / "lake" / "jobs" / "orders.compaction.7.1" / "1" / "request.json"
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(request)]) as process:
        yield process
        process.kill()


def test_driver_is_killed_in_the_middle_of_its_plan_and_not_before(
    tmp_path: Path, driver: subprocess.Popen[bytes]
) -> None:
    timeline = tmp_path / "orders" / ".hoodie" / "timeline"
    timeline.mkdir(parents=True)
    (timeline / "20261123080801790.compaction.requested").touch()
    show, out = make_show(is_terminal=False)
    part = KilledDriver(LocalAirflow(tmp_path / "airflow", ()), tmp_path / "orders", show)
    part.start()
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            driver.wait(0.5)
        (timeline / "20261123080801790.compaction.inflight").touch()
        assert driver.wait(20) == -signal.SIGKILL
        wait_until(lambda: bool(part.run_id), 20, "the report of the kill")
    finally:
        part.stop()
    assert (part.run_id, part.instant) == ("orders.compaction.7.1", "20261123080801790")
    assert "kill -9" in out.getvalue()
    runs, tasks = (
        [{"dag_run_id": part.run_id, "state": "success"}],
        {part.run_id: {"state": "success", "try_number": 2}},
    )
    part.advance(runs, tasks)
    assert (part.ended, part.tries, part.state) == (True, 2, "success")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[ServerProcess]:
    """A writer whose commits ended at 10, 20, 30 and 40 s; the first one created the table."""
    log = tmp_path / "writer.log"
    commits = [
        {"table": "orders", "seconds": seconds, "ended_at": f"1970-01-01T00:00:{second}+00:00", "notice": True}
        for second, seconds in ((10, 9.0), (20, 2.0), (30, 3.0), (40, 3.5))
    ]
    process = start("writer", [sys.executable, "-c", ""], log)
    process.process.wait()
    log.write_text("\n".join(json.dumps(commit) for commit in commits))
    yield process
    process.stop()


def test_commit_next_to_a_service_is_delayed_when_it_takes_a_second_longer_than_any_alone(
    writer: ServerProcess,
) -> None:
    assert commit_times([writer], {}) == CommitTimes((2.0, 3.0, 3.5), ())
    # A service from 28 to 38 s met the last two; another table's service meets none.
    found = commit_times([writer], {"orders": [(28.0, 38.0)], "other": [(0.0, 60.0)]})
    assert found == CommitTimes((2.0,), (3.0, 3.5))
    assert found.delayed == 1
    assert "delayed by a service: 1 of 2" in found.text()
    assert "none of 1" in CommitTimes((2.0,), (2.9,)).text()


def test_query_that_gave_another_answer_or_none_is_not_a_gain() -> None:
    before = {"instant": "1", "seconds": 2.0, "rows": 10, "sum": "5"}
    after = {"instant": "2", "seconds": 1.0, "rows": 10, "sum": "5"}
    lines = "\n".join(json.dumps(one) for one in (before, after))
    assert parse_query(f"WARN\n{lines}") == QueryTimes(2.0, 1.0, 10, True)
    other = "\n".join(json.dumps(one) for one in (before, after | {"sum": "6"}))
    assert parse_query(other) == QueryTimes(2.0, 1.0, 10, False)
    assert parse_query(lines.splitlines()[0]) is None
