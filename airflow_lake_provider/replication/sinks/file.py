"""Files of JSON lines, one for each commit of the table (or part of a snapshot), on any store that fsspec knows.

A file appears whole or not at all, and its name is a number, `<sequence>.jsonl`. Its last line is the checkpoint
(`{"checkpoint": {...}}`), so data and checkpoint are durable in the same moment. The sequence number is what two
writers race for: only one can make the file of a number, the other is fenced.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
from typing import TYPE_CHECKING, Any, BinaryIO

import fsspec

from airflow_lake_provider.errors import CheckpointDamagedError, ConfigError, SinkFencedError, SinkUnavailableError
from airflow_lake_provider.replication.change import message_of
from airflow_lake_provider.replication.checkpoint import to_text

if TYPE_CHECKING:
    from airflow_lake_provider.replication.change import Batch
    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from airflow_lake_provider.replication.sink import SinkSettings

_NAME = re.compile(r"\d{12}\.jsonl")
_MARK = b'{"checkpoint": '


class FileSink:
    """Options: `path` (a folder for this stream alone); `storage.<option>` is handed to fsspec."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        options = dict(settings.options)
        storage = {key[8:]: options.pop(key) for key in list(options) if key.startswith("storage.")}
        path = options.pop("path", "")
        if not path or options:
            raise ConfigError(
                f"the file sink of {settings.table_name} needs path and knows no other setting"
                f"{''.join(f', not {key}' for key in sorted(options))}"
            )
        self._fs, self._folder = fsspec.core.url_to_fs(path, **storage)
        self._is_local = "file" in (self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,))
        self._part: BinaryIO | None = None
        self._part_path = ""

    def open(self) -> str | None:
        """Return the checkpoint of the file with the highest number."""
        try:
            self._fs.makedirs(self._folder, exist_ok=True)
            names = [str(path).rsplit("/", 1)[-1] for path in self._fs.ls(self._folder, detail=False, refresh=True)]
            name = max((name for name in names if _NAME.fullmatch(name)), default=None)
            return None if name is None else _checkpoint_in(self._fs, f"{self._folder}/{name}")
        except OSError as error:
            raise SinkUnavailableError(f"{self._folder}: {error}") from error

    def write(self, batch: Batch) -> None:
        """Append lines to a file that nobody sees yet."""
        part = self._begun()
        for change in batch.changes:
            message = message_of(change, batch.commit, self._settings.mode)
            line = message if message is not None else f'{{"key":{change.key},"deleted":true}}'
            part.write(line.encode() + b"\n")

    def commit(self, checkpoint: Checkpoint) -> None:
        """Add the checkpoint and give the file its name. Raises SinkFencedError when somebody else took the number."""
        part = self._begun()
        part.write(_MARK + to_text(checkpoint).encode() + b"}\n")
        part.flush()
        os.fsync(part.fileno())
        part.close()
        self._part = None
        target = f"{self._folder}/{checkpoint.sequence:012d}.jsonl"
        try:
            self._publish(checkpoint.sequence, target)
        except OSError as error:
            raise SinkUnavailableError(f"{target}: {error}") from error
        finally:
            os.unlink(self._part_path)

    def close(self) -> None:
        """Remove the file that was not committed."""
        if self._part is not None:
            self._part.close()
            self._part = None
            os.unlink(self._part_path)

    def _begun(self) -> BinaryIO:
        if self._part is not None:
            return self._part
        # Beside the others when that is a local folder: a link does not reach across file systems.
        folder = self._folder if self._is_local else tempfile.gettempdir()
        self._part_path = f"{folder}/.{uuid.uuid4().hex}.part"
        self._part = open(self._part_path, "wb")  # noqa: SIM115 - closed by commit or close
        return self._part

    def _publish(self, sequence: int, target: str) -> None:
        try:
            if self._is_local:
                # Unlike a rename, a link fails when the name is taken.
                os.link(self._part_path, target)
                return
            with self._fs.open(target, "xb") as stream, open(self._part_path, "rb") as part:
                shutil.copyfileobj(part, stream)
        except FileExistsError:
            raise SinkFencedError(f"another run has written number {sequence} of {self._folder} already") from None


def _checkpoint_in(fs: Any, path: str) -> str:
    size = fs.size(path)
    # A checkpoint names at most some dozen commits; a schema may make it longer.
    for length in (16_384, size):
        tail = fs.cat_file(path, start=max(0, size - length), end=size)
        begin = tail.rfind(b"\n", 0, len(tail) - 1) + 1
        line = tail[begin:]
        if line.startswith(_MARK) and line.endswith(b"}\n"):
            return bytes(line[len(_MARK) : -2]).decode()
    raise CheckpointDamagedError(f"{path} does not end with a checkpoint")
