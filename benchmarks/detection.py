"""What does it cost to notice commits in 10,000 tables, and how late are they noticed? Polling against our server.

Synthetic tables lie on local disk, each with ten completed delta commits at intervals that fit the rate and end
shortly before now. A fixed share of them gets a new commit per minute; every strategy is given the same schedule
(the same tables at the same offsets). Detection runs in processes of its own, apart from the one that writes:

`poll`: each table once per interval, spread evenly, all read each time: properties, a listing, commits after the
table's cursor. That is what a reader does without a server.
`push`: a timeline server that is notified of each commit, and one `TimelineStream` that waits for all tables. They are
announced the slower of the two ways, through the feed that the server asks once a second (a server that takes the
callback itself knows at once). The state is the one after some hours: each table's last commit was announced.
`heartbeat`: the same server and stream, but nothing is announced: it finds commits by refreshing each table at the
interval that the waiting stream names. A server that was just started works like this too, until a table's next commit
is announced.

Per strategy, measured over the window alone (the warm-up, which loads all tables, is printed):
`fs_calls_per_min`: listings, opened files and stats, counted where the storage is asked.
`cpu_s`: user and system seconds per minute of all processes that detect: the poller, or server and stream together.
Much of it is waking up for each refresh: in a tight loop a poll takes a fraction.
`bytes_per_table`: growth of the resident memory of the server since it had the first tables (one in ten, announced as
the others are later: its threads run, its modules are loaded, and what is bounded for the whole process is full by
then), divided by the tables that were added; of the poller since before it knew one. With few tables this is noise.
`delay_p50_s`, `delay_p99_s`: from the commit's file being written to the moment at which the reader holds the instant.
`missed`: commits not reported one and a quarter intervals after the window (`push`: 5 s after it).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import math
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx

from airflow_lake_provider.config.settings import TimelineServerMode
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import Timeline, load_timeline
from airflow_lake_provider.storage.table_storage import StorageCalls, open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.client import TimelineEndpoint
from airflow_lake_provider.timeline_server.schedule import SharedLimits
from airflow_lake_provider.timeline_server.server import ServerOptions, TableFeed, TimelineServer, use_one_heap
from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot
from airflow_lake_provider.timeline_server.subscription import StreamOptions, TimelineStream
from airflow_lake_provider.timeline_server.watch import find_commits_after
from benchmarks.ranks import rank_if_any
from local_stack.processes import free_port, wait_until
from tests.support.tables import HandMadeTable

WORK = Path(__file__).resolve().parent.parent / ".work"
TOKEN = "bench-secret"
INSTANTS = 10
SEED = 20261121
POLL_THREADS = 4
PUSH_GRACE_S = 5.0
GRACE_INTERVALS = 1.25
SETTLE_S = 5.0
WARM_UP_TIMEOUT_S = 600.0
KINDS = ("list", "open", "stat")
PROCESSES = multiprocessing.get_context("spawn")

Found = tuple[str, str, float]
"""Base path, requested time, moment (seconds since the epoch)."""


@dataclass(frozen=True)
class Load:
    """What happens to the tables."""

    tables: int
    rate: float
    minutes: float
    interval_s: float

    def schedule(self) -> list[tuple[float, int]]:
        """Return seconds from the window's begin and table, in order; the same in every process and strategy."""
        chance = random.Random(SEED)
        commits = []
        for minute in range(math.ceil(self.minutes)):
            tables = chance.sample(range(self.tables), max(1, round(self.tables * self.rate)))
            commits += [(60 * (minute + chance.random()), table) for table in tables]
        return sorted(commit for commit in commits if commit[0] < 60 * self.minutes)


# --- tables ------------------------------------------------------------------------------------------------------


def instant_time(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y%m%d%H%M%S%f")[:17]


def write_commit(table: Path, completed_s: float) -> str:
    """Add a completed delta commit that was requested two seconds before; return its requested time."""
    requested = instant_time(completed_s - 2)
    (table / ".hoodie" / "timeline" / f"{requested}_{instant_time(completed_s)}.deltacommit").write_bytes(b"{}")
    return requested


def synthesise(folder: Path, load: Load) -> list[str]:
    """Make the tables: one prototype's properties, and commits as far apart as the rate makes them."""
    properties = (HandMadeTable.create(folder / "prototype").path / ".hoodie" / "hoodie.properties").read_bytes()
    chance = random.Random(SEED)
    now_s = time.time()
    paths = []
    for number in range(load.tables):
        table = folder / f"{number // 1000:03d}" / f"table-{number:06d}"
        (table / ".hoodie" / "timeline").mkdir(parents=True)
        (table / ".hoodie" / "hoodie.properties").write_bytes(properties)
        moment_s = now_s - 5
        for _ in range(INSTANTS):
            moment_s -= 1 + chance.expovariate(load.rate / 60)
            write_commit(table, moment_s)
        paths.append(str(table))
    return paths


# --- readers, each in a process of its own -----------------------------------------------------------------------


@dataclass
class Reader:
    """What a reader saw, and what it asked of the storage itself."""

    cursors: dict[str, str] = field(default_factory=dict)
    found: list[Found] = field(default_factory=list)
    calls: list[StorageCalls] = field(default_factory=list)
    errors: int = 0
    most_late_s: float = 0.0

    def see(self, base_path: str, timeline: Timeline) -> None:
        """Take a table's timeline; what was there at first is no event."""
        cursor = self.cursors.get(base_path)
        commits = find_commits_after(timeline, cursor or "")
        now_s = time.time()
        if commits:
            self.cursors[base_path] = commits[-1].completed_time or ""
        if cursor is not None:
            self.found += [(base_path, commit.requested_time, now_s) for commit in commits]

    def report(self) -> dict[str, Any]:
        return {
            "found": list(self.found),
            "calls": dict(zip(KINDS, (sum(getattr(c, f"{k}s") for c in self.calls) for k in KINDS), strict=True)),
            "seen": len(self.cursors),
            "errors": self.errors,
            "most_late_s": self.most_late_s,
        }

    def serve(self, pipe: Connection, begin: Callable[[], None]) -> None:
        """Say that the process is ready, begin when asked to, then report as often as asked."""
        pipe.send("ready")
        pipe.recv()
        threading.Thread(target=begin, daemon=True).start()
        while pipe.recv() == "report":
            pipe.send(self.report())


def run_poller(pipe: Connection, paths: list[str], interval_s: float) -> None:
    """Poll each table once per interval; a few threads, so that one slow refresh delays no other table's."""
    reader = Reader()

    def poll_share(first: int, began: float) -> None:
        calls = StorageCalls()
        reader.calls.append(calls)
        rounds = 0
        while True:
            for number in range(first, len(paths), POLL_THREADS):
                due = began + interval_s * (rounds + number / len(paths))
                time.sleep(max(0.0, due - time.monotonic()))
                reader.most_late_s = max(reader.most_late_s, time.monotonic() - due)
                storage = open_storage(paths[number])
                storage.calls = calls
                reader.see(paths[number], load_timeline(storage, load_table_properties(storage)))
            rounds += 1

    def begin() -> None:
        began = time.monotonic()
        for first in range(POLL_THREADS):
            threading.Thread(target=poll_share, args=(first, began), daemon=True).start()

    reader.serve(pipe, begin)


def run_watcher(pipe: Connection, paths: list[str], interval_s: float, url: str) -> None:
    """Wait for all tables with one stream, as a triggerer does."""
    reader = Reader()

    async def watch() -> None:
        stream = TimelineStream(StreamOptions(TimelineServerMode.REQUIRED, TimelineEndpoint(url, TOKEN)))
        stream.watched.add(paths, interval_s)
        async for seen in stream.events():
            for base_path, state in seen.items():
                if isinstance(state, TimelineSnapshot):
                    reader.see(base_path, state.timeline)
                else:
                    reader.errors += 1

    reader.serve(pipe, lambda: asyncio.run(watch()))


# --- the server, in a process of its own -------------------------------------------------------------------------


class FileFeed:
    """Plays the registry: tables appear in one file, marks are appended to another. It keeps no path of a table."""

    def __init__(self, tables: Path, marks: Path) -> None:
        self._tables = tables
        self._marks = marks
        self._is_read = False
        self._offset = 0

    def poll(self) -> Iterator[TableFeed]:
        if not self._is_read and self._tables.exists():
            self._is_read = True
            with self._tables.open(encoding="utf-8") as lines:
                yield from (TableFeed(line.rstrip("\n")) for line in lines)
        with self._marks.open("rb") as stream:
            stream.seek(self._offset)
            text, newline, _ = stream.read().rpartition(b"\n")
        self._offset += len(text) + len(newline)
        for line in io.BytesIO(text):
            path, _, mark = line.decode().rstrip("\n").rpartition(" ")
            yield TableFeed(path, mark=int(mark), is_by_writer=True)


def run_server(folder: Path, port: int, tables: int) -> None:
    import uvicorn

    from airflow_lake_provider.timeline_server.routes import create_timeline_app

    use_one_heap()  # as `airflow lake timeline-server` does
    timelines = SharedTimelines(SharedLimits(max_tables=max(SharedLimits().max_tables, tables)))
    options = ServerOptions((str(folder),), (TOKEN,), snapshot_path=folder / "server.timelines")
    server = TimelineServer(timelines, options, FileFeed(folder / "tables", folder / "marks"))
    uvicorn.run(create_timeline_app(lambda: server), host="127.0.0.1", port=port, log_level="warning")


# --- processes from outside --------------------------------------------------------------------------------------


@dataclass
class Child:
    """A started process."""

    process: Any
    pipe: Connection | None = None

    @classmethod
    def start_reader(cls, target: Callable[..., None], *arguments: Any) -> Child:
        pipe, far = PROCESSES.Pipe()
        process = PROCESSES.Process(target=target, args=(far, *arguments), daemon=True)
        process.start()
        far.close()
        pipe.recv()
        return cls(process, pipe)

    def begin(self) -> None:
        assert self.pipe is not None
        self.pipe.send("begin")

    def report(self) -> dict[str, Any]:
        assert self.pipe is not None
        self.pipe.send("report")
        answer: dict[str, Any] = self.pipe.recv()
        return answer

    def cpu_s(self) -> float:
        """Return user and system time so far."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="utf-8").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        self.process.terminate()
        self.process.join(15)
        self.process.kill()
        self.process.join()


class Server:
    """The timeline server's process and what it says of itself."""

    def __init__(self, folder: Path, tables: int) -> None:
        self._folder = folder
        self.paths: list[str] = []
        """Tables are named by their place among them."""
        self._marked: dict[int, int] = {}
        for name in ("tables", "server.timelines"):
            (folder / name).unlink(missing_ok=True)
        (folder / "marks").write_bytes(b"")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/v1/hoodie"
        self._client = httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30, trust_env=False)
        self.child = Child(PROCESSES.Process(target=run_server, args=(folder, port, tables), daemon=True))
        self.child.process.start()
        try:
            wait_until(self._answers, 60, "the timeline server", [])
        except BaseException:
            self.child.stop()
            raise

    def _answers(self) -> bool:
        try:
            return self._client.get(f"{self.url}/timeline/metrics").is_success
        except httpx.HTTPError:
            return False

    def metrics(self) -> dict[str, float]:
        text = self._client.get(f"{self.url}/timeline/metrics").text
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    def hints_waiting(self) -> int:
        return int(self._client.get(f"{self.url}/timeline/health").json()["hints_waiting"])

    def calls(self) -> dict[str, int]:
        metrics = self.metrics()
        return {kind: int(metrics[f'lake_storage_calls_total{{kind="{kind}"}}']) for kind in KINDS}

    def show(self, paths: list[str]) -> int:
        """Ask for tables until each was answered, as a stream does that begins; return how many there are."""
        left = dict.fromkeys(paths)

        def is_shown() -> bool:
            tables = [{"base_path": path, "poll_interval_s": None} for path in left]
            answer = self._client.post(f"{self.url}/timeline/changes", json={"tables": tables})
            for changed in answer.raise_for_status().json()["changed"]:
                left.pop(changed["base_path"], None)
            return not left

        wait_until(is_shown, 60, "the first tables to be answered", [])
        return len(paths)

    def register(self) -> None:
        new = self._folder / "tables.new"
        new.write_text("\n".join(self.paths), encoding="utf-8")
        new.replace(self._folder / "tables")

    def announce(self, tables: Iterable[int]) -> None:
        lines = []
        for table in tables:
            self._marked[table] = self._marked.get(table, 0) + 1
            lines.append(f"{self.paths[table]} {self._marked[table]}\n")
        with (self._folder / "marks").open("a", encoding="utf-8") as stream:
            stream.write("".join(lines))

    def close(self) -> None:
        self._client.close()
        self.child.stop()


# --- strategies --------------------------------------------------------------------------------------------------


@dataclass
class Detector:
    """One strategy at work."""

    name: str
    reader: Child
    processes: list[Child]
    holder: Child
    """Whose memory holds the tables."""
    empty_bytes: int
    known: int
    """How many tables it had then."""
    calls: Callable[[], dict[str, int]]
    announce: Callable[[int], None]
    grace_s: float


def do_nothing(_table: int) -> None:
    pass


@contextmanager
def polling(paths: list[str], load: Load, _folder: Path) -> Iterator[Detector]:
    child = Child.start_reader(run_poller, paths, load.interval_s)
    try:
        empty_bytes = child.resident_bytes()
        child.begin()
        time.sleep(load.interval_s)
        wait_for(lambda: child.report()["seen"] == len(paths), "every table to be polled once")
        grace_s = GRACE_INTERVALS * load.interval_s
        yield Detector(
            "poll", child, [child], child, empty_bytes, 0, lambda: child.report()["calls"], do_nothing, grace_s
        )
    finally:
        child.stop()


@contextmanager
def serving(paths: list[str], load: Load, folder: Path, is_push: bool) -> Iterator[Detector]:
    server = Server(folder, len(paths))
    watcher: Child | None = None
    try:
        known = server.show(paths[: max(1, len(paths) // 10)])
        server.paths = paths
        if is_push:
            announce_all(server, known)
        time.sleep(SETTLE_S)
        empty_bytes = server.child.resident_bytes()
        server.register()
        watcher = reader = Child.start_reader(run_watcher, paths, load.interval_s, server.url)
        reader.begin()
        began = time.monotonic()
        wait_for(lambda: reader.report()["seen"] == len(paths), "the stream to hold every table")
        say(f"  all tables loaded and reported to the stream in {time.monotonic() - began:.1f} s")
        if is_push:
            announce_all(server, len(paths))
            time.sleep(SETTLE_S)
        else:
            time.sleep(load.interval_s)  # the first refreshes, of what was loaded within a few seconds
        yield Detector(
            "push" if is_push else "heartbeat",
            reader,
            [server.child, reader],
            server.child,
            empty_bytes,
            known,
            server.calls,
            (lambda table: server.announce([table])) if is_push else do_nothing,
            PUSH_GRACE_S if is_push else GRACE_INTERVALS * load.interval_s,
        )
        describe(server, reader)
    finally:
        if watcher is not None:
            watcher.stop()
        server.close()


def announce_all(server: Server, tables: int) -> None:
    """Announce one commit of each of the first so many tables, all at once: their writers announce from then on."""
    began, hints_before = time.monotonic(), server.metrics()["lake_timeline_hints_total"]
    server.announce(range(tables))
    wait_for(
        lambda: server.metrics()["lake_timeline_hints_total"] - hints_before >= tables and not server.hints_waiting(),
        "every table to be refreshed after it was announced",
    )
    say(f"  {tables} announcements at once were followed by a refresh in {time.monotonic() - began:.1f} s")


def describe(server: Server, reader: Child) -> None:
    metrics = server.metrics()
    interesting = (
        "hints_total",
        "unannounced_commits_total",
        "failed_refreshes_total",
        "evictions_total",
        "kept_bytes",
    )
    say("  server, since its start: " + ", ".join(f"{n} {metrics[f'lake_timeline_{n}']:.0f}" for n in interesting))
    say(f"  stream: resident {reader.resident_bytes() / 1e6:.0f} MB, {reader.report()['errors']} errors reported")


def measure(detector: Detector, load: Load, paths: list[str]) -> dict[str, Any]:
    """Commit as scheduled while the strategy works; return what it cost and found."""
    calls, cpu_s = detector.calls(), [child.cpu_s() for child in detector.processes]
    say(f"  warm-up: {split(calls)}; CPU {', '.join(f'{s:.1f}' for s in cpu_s)} s")
    written, most_late_s = commit_as_scheduled(detector, load, paths)
    spent_s = [child.cpu_s() - before for child, before in zip(detector.processes, cpu_s, strict=True)]
    resident_bytes = detector.holder.resident_bytes()
    spent = {kind: (count - calls[kind]) / load.minutes for kind, count in detector.calls().items()}
    time.sleep(detector.grace_s)
    report = detector.reader.report()
    found = {(path, requested): at for path, requested, at in reversed(report["found"])}
    delays = sorted(found[commit] - at for commit, at in written.items() if commit in found)
    say(
        f"  window: {split(spent)} per minute; CPU {', '.join(f'{s / load.minutes:.2f}' for s in spent_s)} s per minute"
    )
    say(f"  {len(delays)} of {len(written)} commits reported; written at most {most_late_s * 1000:.0f} ms late")
    if delays:
        say(f"  delays {delays[0]:.2f} to {delays[-1]:.2f} s")
    if report["most_late_s"] > load.interval_s / 10:
        say(f"  this machine does not keep up: a poll began {report['most_late_s']:.1f} s after it was due")
    return {
        "fs_calls_per_min": round(sum(spent.values()), 1),
        "cpu_s": round(sum(spent_s) / load.minutes, 2),
        "bytes_per_table": round((resident_bytes - detector.empty_bytes) / (load.tables - detector.known)),
        "delay_p50_s": rank_if_any(delays, 0.5),
        "delay_p99_s": rank_if_any(delays, 0.99),
        "missed": len(written) - len(delays),
    }


def commit_as_scheduled(detector: Detector, load: Load, paths: list[str]) -> tuple[dict[tuple[str, str], float], float]:
    """Return each commit with the moment at which its file was there, and by how much the slowest was overdue."""
    written: dict[tuple[str, str], float] = {}
    most_late_s = 0.0
    began = time.monotonic()
    for offset_s, table in load.schedule():
        time.sleep(max(0.0, began + offset_s - time.monotonic()))
        most_late_s = max(most_late_s, time.monotonic() - began - offset_s)
        requested = write_commit(Path(paths[table]), time.time())
        written[paths[table], requested] = time.time()
        detector.announce(table)
    time.sleep(max(0.0, began + 60 * load.minutes - time.monotonic()))
    return written, most_late_s


def split(calls: dict[str, Any]) -> str:
    return ", ".join(f"{calls[kind]:.0f} {kind}s" for kind in KINDS)


def wait_for(is_true: Callable[[], bool], what: str) -> None:
    wait_until(is_true, WARM_UP_TIMEOUT_S, what, [])


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=3.0, help="length of each strategy's window")
    parser.add_argument("--rate", type=float, default=0.01, help="share of the tables that get a commit per minute")
    parser.add_argument("--interval", type=float, default=60.0, help="seconds between two polls of a table")
    parser.add_argument("--strategies", nargs="+", choices=("poll", "push", "heartbeat"), help="all unless named")
    options = parser.parse_args()
    load = Load(options.tables, options.rate, options.minutes, options.interval)
    strategies = {
        "poll": polling,
        "push": lambda *given: serving(*given, is_push=True),
        "heartbeat": lambda *given: serving(*given, is_push=False),
    }
    commits = len(load.schedule())
    result: dict[str, Any] = {"tables": load.tables, "commits_per_min": round(commits / load.minutes, 1)}
    WORK.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-detection-", dir=WORK))
    try:
        began = time.monotonic()
        paths = synthesise(folder, load)
        say(f"{load.tables} tables of {INSTANTS} commits made in {time.monotonic() - began:.0f} s")
        for name, strategy in strategies.items():
            if name not in (options.strategies or strategies):
                continue
            began = time.monotonic()
            say(f"{name}: {commits} commits in {load.minutes:g} min, a poll per table each {load.interval_s:g} s")
            with strategy(paths, load, folder) as detector:
                say(f"  ready after {time.monotonic() - began:.0f} s")
                result[name] = measure(detector, load, paths)
            say(f"  {json.dumps(result[name])}")
    finally:
        shutil.rmtree(folder)
    if {"push", "poll"} <= result.keys():
        share = result["push"]["fs_calls_per_min"] / result["poll"]["fs_calls_per_min"]
        result["push_share_of_poll"] = round(share, 5)
    say(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
