"""Writers in threads that stop between writing and committing: each has a lock of its own, which the test holds."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

from local_stack import lake_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from conftest import Table
    from pyspark.sql import DataFrame, SparkSession

PATIENCE_S = 120.0
WRITES = ("commit", "deltacommit", "replacecommit")


class NotHeldError(Exception):
    """The writer committed between two questions for its markers: a slow machine, which says nothing of the guard."""


@dataclass(slots=True)
class HeldWriter:
    """An upsert of some orders. `instant` is known from the start, its markers appear while it runs."""

    table: Table
    folder: Path
    instant: str = ""
    outcome: Future[None] = field(default_factory=Future)

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def marker_folder(self) -> Path:
        return self.table.path / ".hoodie" / ".temp" / self.instant

    def release(self) -> str:
        """Let it commit; return the name of Hudi's complaint, empty when it committed."""
        self.lock.unlink()
        error = self.outcome.exception(timeout=PATIENCE_S)
        if error is None:
            return ""
        text = str(error)
        causes = [part.split("\\n", 1)[0][:300] for part in text.split("Caused by: ")[1:]]
        return "HoodieWriteConflictException" if "HoodieWriteConflictException" in text else f"{text[:200]} {causes}"


def start_writer(spark: SparkSession, table: Table, city: str, folder: Path, options: Mapping[str, str]) -> HeldWriter:
    """Start an upsert of one city's orders and hold its commit as soon as it has markers."""
    orders = lake_writer.orders_of_commit(spark, table.written, table.written.commits)
    return start_writer_of(orders.where(f"city = '{city}' and id < {table.written.keys}"), table, folder, options)


def start_writer_of(orders: DataFrame, table: Table, folder: Path, options: Mapping[str, str]) -> HeldWriter:
    """Start an upsert of these orders and hold its commit as soon as it has markers; raise NotHeldError."""
    folder.mkdir(parents=True)
    writer = HeldWriter(table, folder)
    before = _instants(table)
    settings = {**options, "hoodie.write.lock.filesystem.path": str(folder)}
    settings["hoodie.write.lock.client.wait_time_ms_between_retry"] = "100"
    settings["hoodie.write.lock.client.num_retries"] = "1200"
    settings["hoodie.write.lock.filesystem.expire"] = "0"
    threading.Thread(target=_write, args=(orders, writer, settings), daemon=True).start()
    wait_until(lambda: bool(_instants(table) - before) or writer.outcome.done())
    (writer.instant,) = _instants(table) - before or {""}
    # Before it writes it takes its lock several times, after that once more: to commit.
    wait_until(lambda: _markers(writer.marker_folder) > 0 or writer.outcome.done())
    wait_until(lambda: take_lock(writer.lock) or writer.outcome.done())
    if _has_committed(writer):
        raise NotHeldError(f"{writer.instant} of {table.path}")
    return writer


def again_when_not_held(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test once more, in another folder, as long as its writer could not be held; three times at most.

    For tests of which all lies in `tmp_path`.
    """

    @wraps(test)
    def run(*, tmp_path: Path, **given: object) -> None:
        for attempt in range(2):
            try:
                return test(tmp_path=tmp_path / f"{attempt}", **given)
            except NotHeldError:
                continue
        return test(tmp_path=tmp_path / "last", **given)

    return run


def _has_committed(writer: HeldWriter) -> bool:
    """Whether it has committed; then it may still be at work, as for its lock's end."""
    return any(writer.instant in writer.table.completed(action) for action in WRITES)


def wait_until(holds: Callable[[], bool]) -> None:
    """Raise TimeoutError when it does not come true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(0.005)


def _markers(folder: Path) -> int:
    lines = sum(len(path.read_bytes().split()) for path in folder.glob("MARKERS[0-9]*"))
    return lines + sum(1 for path in folder.rglob("*.marker.*") if not path.name.endswith(".crc"))


def take_lock(lock: Path) -> bool:
    """Take a lock, unless another holds it: that one would remove it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _instants(table: Table) -> set[str]:
    return {name.split(".")[0] for name in table.files() if name.endswith(("commit.requested",))}


def _write(orders: DataFrame, writer: HeldWriter, options: Mapping[str, str]) -> None:
    table = writer.table.written
    settings = lake_writer.write_options(table, table.commits, None, options)
    try:
        orders.write.format("hudi").options(**settings).mode("append").save(str(writer.table.path))
        writer.outcome.set_result(None)
    except Exception as error:  # noqa: BLE001 - whatever Hudi raises is the test's business
        writer.outcome.set_exception(error)
