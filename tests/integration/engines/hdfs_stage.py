"""A stage whose tables and job files are on HDFS."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hdfs_native import Client, WriteOptions

from local_stack.processes import ServerProcess
from tests.integration.engines.stage import Stage


@contextmanager
def held_lock(store: Client, path: str) -> Iterator[None]:
    """Hold the lock of the table at a path, as a writer does, so that its driver waits."""
    lock, done = f"{path}/.hoodie/lock", threading.Event()

    def hold() -> None:
        while not done.wait(5):
            # A NameNode that has just died refuses.
            with contextlib.suppress(RuntimeError, OSError):
                store.create(lock, WriteOptions(overwrite=True)).close()

    store.create(lock, WriteOptions(overwrite=True)).close()
    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    try:
        yield
    finally:
        done.set()
        holder.join()
        store.delete(lock)


@dataclass
class HdfsStage(Stage):
    """Tasks on the HDFS of an address; `conf` is the clients' configuration."""

    store_url: str = ""
    conf: str = ""

    @property
    def root(self) -> str:
        return f"{self.store_url}{self.folder}"

    @property
    def base_path(self) -> str:
        # The writer's: a table that is written once, on a local disk whatever Hadoop's default is, and copied.
        return f"file://{self.folder}/template/orders"

    @property
    def store(self) -> Client:
        return Client(self.store_url, {}, config_dir=self.conf)

    def path_of(self, name: str) -> str:
        """Return the base path of a copied table."""
        return f"{self.store_url}{self.folder}/lake/{name}"

    def copy_table(self, name: str, source: Path | None = None) -> str:
        """Upload the written table, or that of a local folder, as `name`; return its base path."""
        store, source = self.store, source or self.folder / "template" / "orders"
        for path in sorted(source.rglob("*")):
            # Spark's local file system writes a checksum next to each file.
            if path.is_file() and not path.name.endswith(".crc"):
                target = f"{self.folder}/lake/{name}/{path.relative_to(source)}"
                with store.create(target, WriteOptions(overwrite=True, create_parent=True)) as stream:
                    if path.stat().st_size:
                        stream.write(path.read_bytes())
        return self.path_of(name)

    def instants(self, name: str) -> set[str]:
        """Return the file names of a table's timeline."""
        entries = self.store.list_status(f"{self.folder}/lake/{name}/.hoodie/timeline")
        return {entry.path.rsplit("/", 1)[-1] for entry in entries}

    def commits(self, name: str) -> list[str]:
        """Return the file names of a table's completed compactions."""
        return sorted(entry for entry in self.instants(name) if entry.endswith(".commit"))

    def base_files(self, name: str) -> list[str]:
        """Return the file names of a table's base files."""
        entries = self.store.list_status(f"{self.folder}/lake/{name}", recursive=True)
        return [
            entry.path.rsplit("/", 1)[-1]
            for entry in entries
            if entry.path.endswith(".parquet") and "/.hoodie/" not in entry.path
        ]

    def require_completed(self, name: str, task: ServerProcess) -> None:
        """Require that a task completed a compaction, and that its table has neither another one nor another plan."""
        returned = self.wait_for_task(task)
        assert returned["outcome"] == "completed", task.log_tail(80)
        assert [commit.split("_")[0] for commit in self.commits(name)] == returned["completed_instants"]
        plans = {entry.split(".")[0] for entry in self.instants(name) if ".compaction." in entry}
        assert plans <= set(returned["completed_instants"])

    def require_executed_once(self, name: str) -> None:
        """Require one completed compaction, with one base file of it in each file group."""
        (commit,) = self.commits(name)
        instant = commit.split("_")[0]
        written = [base.removesuffix(".parquet").split("_") for base in self.base_files(name)]
        groups = Counter(group for group, _, written_at in written if written_at == instant)
        assert groups, written
        assert set(groups.values()) == {1}, groups

    def read_text(self, path: str) -> str:
        """Return the text of a file below the stage's folder."""
        with self.store.read(f"{self.folder}/{path}") as stream:
            return bytes(stream.read()).decode()

    def held_lock(self, name: str) -> AbstractContextManager[None]:
        """Hold a table's lock, as a writer does, so that its driver waits."""
        return held_lock(self.store, f"{self.folder}/lake/{name}")

    def log_of(self, task: ServerProcess) -> str:
        return task.log_path.read_text(encoding="utf-8")

    def env(self) -> Mapping[str, str]:
        return {**super().env(), "HADOOP_CONF_DIR": self.conf}
