"""The handle of a standing writer: start it, order commits and reads, stop it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from local_stack.hudi_bundle import CLASSES, HUDI_CLASSES, JAR, SPARK_PYTHON, bundle_first, scratch_env, spark_env

SCRIPT = Path(__file__).parent / "standing_writer.py"


class WriterFailedError(RuntimeError):
    """The writer refused an order or has ended; the message holds its output."""


class StandingWriter:
    """One writer process with its log; `order` waits for the answer. Not for several threads at once."""

    def __init__(self, home: Path, spark_conf: Mapping[str, str] | None = None) -> None:
        self._log_path = home / "logs" / "standing-writer.log"
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        conf_path = home / "standing-writer.json"
        conf = {"spark.jars": str(JAR), **(spark_conf or {})}
        is_ours = conf["spark.jars"] == str(JAR)
        conf_path.write_text(json.dumps(conf | (bundle_first() if is_ours else {})), encoding="utf-8")
        classes = HUDI_CLASSES if is_ours else CLASSES
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [str(SPARK_PYTHON), str(SCRIPT), str(conf_path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=spark_env() | scratch_env(home / "tmp", classes),
                cwd=home,
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        """Return the writer once it is ready; it ends with the block."""
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_until_ready(self) -> None:
        """Wait for the Spark session, which takes some seconds; raises WriterFailedError."""
        self._answer()

    def write(
        self,
        table: Mapping[str, Any],
        commit: int,
        callback: Mapping[str, Any] | None = None,
        hudi_options: Mapping[str, str] | None = None,
    ) -> float:
        """Write one commit of a table (fields of WrittenTable); return the seconds that it took."""
        order = {"do": "write", "table": table, "commit": commit, "callback": callback}
        return float(self.order({**order, "hudi_options": dict(hudi_options or {})})["seconds"])

    def read(self, base_path: Path | str, where: str = "") -> dict[str, Any]:
        """Read a snapshot, or its rows of a condition; `rows`, `ids`, `cents` (the sum of all amounts), `seconds`."""
        return self.order({"do": "read", "base_path": str(base_path), "where": where})

    def travel(self, base_path: Path | str, instants: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the rows that a table had after each of the instants."""
        rows: dict[str, list[dict[str, Any]]] = self.order(
            {"do": "travel", "base_path": str(base_path), "instants": list(instants)}
        )["rows"]
        return rows

    def order(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Send an order and return its answer; raises WriterFailedError."""
        self.begin(order)
        return self.finish()

    def finish(self) -> dict[str, Any]:
        """Return the answer to the order that was begun; raises WriterFailedError."""
        return self._answer()

    def begin(self, order: Mapping[str, Any]) -> None:
        """Send an order, and do not wait for its answer; raises WriterFailedError."""
        stream = self._stream(self._process.stdin)
        try:
            stream.write(json.dumps(order) + "\n")
            stream.flush()
        except BrokenPipeError as error:
            raise WriterFailedError(f"the writer is gone: {self._log_tail()}") from error

    def stop(self) -> None:
        """End the writer and everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            self._stream(stream).close()

    def _answer(self) -> dict[str, Any]:
        for line in self._stream(self._process.stdout):
            # Hudi and Spark print lines of their own.
            if line.startswith('{"ok"'):
                answer: dict[str, Any] = json.loads(line)
                if not answer["ok"]:
                    raise WriterFailedError(str(answer["error"]))
                return answer
        raise WriterFailedError(f"the writer ended: {self._log_tail()}")

    def _log_tail(self) -> str:
        return self._log_path.read_text(encoding="utf-8", errors="replace")[-3000:]

    @staticmethod
    def _stream(stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream
