"""A file of JSON lines that grows batch by batch; its last line is the checkpoint, `{"checkpoint": {...}}`."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from airflow_lake_provider.errors import CheckpointDamagedError
from airflow_lake_provider.replication.change import message_of

if TYPE_CHECKING:
    from airflow_lake_provider.replication.change import Batch, Mode

_MARK = b'{"checkpoint": '
# A checkpoint names at most some dozen commits; a schema may make it longer, and then this reads the whole file.
_TAIL_BYTES = 16_384


class JsonLinesPart:
    """One file that is not visible yet."""

    def __init__(self, stream: BinaryIO, mode: Mode) -> None:
        self._stream = stream
        self._mode = mode

    def write(self, batch: Batch) -> None:
        """Append one line for each change."""
        for change in batch.changes:
            message = message_of(change, batch.commit, self._mode)
            line = message if message is not None else f'{{"key":{change.key},"deleted":true}}'
            self._stream.write(line.encode() + b"\n")

    def finish(self, checkpoint: str) -> None:
        """Append the checkpoint; the stream stays open."""
        self._stream.write(_MARK + checkpoint.encode() + b"}\n")

    def close(self) -> None:
        """Do nothing: the caller closes the stream."""


def checkpoint_in(stream: BinaryIO, path: str) -> str:
    """Return the checkpoint of a file. Raises CheckpointDamagedError."""
    # Not every store's stream returns its position from seek.
    stream.seek(0, 2)
    size = stream.tell()
    for length in (_TAIL_BYTES, size):
        stream.seek(max(0, size - length))
        tail = stream.read()
        line = tail[tail.rfind(b"\n", 0, len(tail) - 1) + 1 :]
        if line.startswith(_MARK) and line.endswith(b"}\n"):
            return line[len(_MARK) : -2].decode()
    raise CheckpointDamagedError(f"{path} does not end with a checkpoint")
