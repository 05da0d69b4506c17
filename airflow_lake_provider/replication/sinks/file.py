"""Files of JSON lines or Parquet, one for each commit of the table (or part of a snapshot), on any store of fsspec.

A file appears complete or not at all, and its name is a number, `<sequence>.jsonl` or `.parquet`; from the thousandth
on it is in a folder with a thousand of them. The checkpoint is
part of it (last line, or footer), so data and checkpoint become durable together. Two writers race for the sequence
number: only one can create the file of a number, the other is fenced.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import tempfile
import uuid
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import fsspec

from airflow_lake_provider.errors import (
    CheckpointDamagedError,
    ConfigError,
    RecordRefusedError,
    SinkFencedError,
    SinkUnavailableError,
)
from airflow_lake_provider.replication.change import ChangeMode, load_json, message_of
from airflow_lake_provider.replication.checkpoint import from_text, to_text
from airflow_lake_provider.replication.sink import json_row, row_of_message
from airflow_lake_provider.sink_options.options import OnRecordError, TakenOptions
from airflow_lake_provider.sink_options.stores import FILE_FORMATS, take_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from airflow_lake_provider.replication.change import Batch, Change
    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from airflow_lake_provider.replication.sink import Row, SinkSettings

log = logging.getLogger(__name__)

DEAD_LETTERS = "dead_letters"
"""The folder, next to the files, of records that the format cannot hold."""
HDFS = frozenset({"hdfs", "viewfs"})
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"})


FILES_IN_A_FOLDER = 1_000
"""Each run finds the last file by a listing, and HDFS takes about a million files in a folder."""
_FILE = re.compile(r"\d{12}\.(jsonl|parquet)")
_PART = re.compile(r"\.[0-9a-f]{32}\.part")
_FOLDER = re.compile(r"\d{9}")


class Part(Protocol):
    """A file of one format that is not visible yet."""

    def write(self, batch: Batch) -> None:
        """Append changes."""

    def finish(self, checkpoint: str) -> None:
        """End the file with the checkpoint; the stream stays open."""

    def close(self) -> None:
        """Drop the file."""


class FileSink:
    """Options: `path` (a folder for this stream alone), `format`; `storage.<option>` goes to fsspec."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        options = TakenOptions(settings.options, f"the file sink of {settings.table_name}")
        taken = take_file(options)
        options.end()
        form = taken.format
        self._on_error = taken.on_record_error
        self._letters: list[str] = []
        # Not shared: fsspec drops the shared ones in a forked child, where dropping hdfs-native's hangs.
        self._fs, self._folder = fsspec.core.url_to_fs(taken.path, skip_instance_cache=True, **taken.storage)
        protocols = {self._fs.protocol} if isinstance(self._fs.protocol, str) else set(self._fs.protocol)
        self._is_local = "file" in protocols
        self._is_hdfs = not protocols.isdisjoint(HDFS)
        self._has_folders = protocols.isdisjoint(OBJECT_STORES)
        self._suffix = "jsonl" if form == FILE_FORMATS[0] else "parquet"
        self._make_part, self._checkpoint_in = _json() if form == FILE_FORMATS[0] else _parquet()
        self._stream: BinaryIO | None = None
        self._part: Part | None = None
        self._part_path = self._made = ""

    def open(self) -> str | None:
        """Return the checkpoint of the file with the highest number."""
        try:
            self._sweep()
            path = self._find_newest()
            if path is None:
                return None
            if not path.endswith(self._suffix):
                raise ConfigError(f"{path} exists already: files of another format need another path")
            with self._fs.open(path, "rb") as stream:
                return self._checkpoint_in(stream, path)
        except OSError as error:
            raise SinkUnavailableError(f"{self._folder}: {error}") from error

    def _sweep(self) -> None:
        """Remove what killed runs of the stream left; a rival that still writes loses its file, and so makes way."""
        if self._is_local:
            for path in Path(self._folder).glob(".*.part"):
                if _PART.fullmatch(path.name):
                    path.unlink(missing_ok=True)

    def _find_newest(self) -> str | None:
        """Return the file with the highest number: in the newest folder, unless a run died before it wrote there."""
        names = self._list_names(self._folder)
        for folder in _folders_in(names):
            if files := self._files_in(folder):
                return max(files)
        return max(_paths(self._folder, names), default=None)

    def _list_files(self) -> list[str]:
        """Return all files of the stream, oldest first."""
        names = self._list_names(self._folder)
        found = [path for folder in _folders_in(names) for path in self._files_in(folder)]
        return sorted((*_paths(self._folder, names), *found), key=lambda path: path.rpartition("/")[2])

    def _files_in(self, folder: str) -> list[str]:
        path = f"{self._folder}/{folder}"
        return _paths(path, self._list_names(path))

    def _list_names(self, folder: str) -> list[str]:
        if self._has_folders:
            self._fs.makedirs(folder, exist_ok=True)
        try:
            paths = self._fs.ls(folder, detail=False, refresh=True)
        except FileNotFoundError:
            bucket = self._folder.partition("/")[0]
            if self._has_folders or not self._fs.exists(bucket):
                raise
            # A store without folders has none before its first file.
            return []
        return [str(path).rsplit("/", 1)[-1] for path in paths]

    def write(self, batch: Batch) -> None:
        """Append to a file that is not visible yet."""
        try:
            self._write(self._begun()[1], batch)
        except OSError as error:
            raise self._full(error) from error

    def _write(self, part: Part, batch: Batch) -> None:
        """Write changes together; where one is refused, in halves until it stands alone."""
        try:
            part.write(batch)
        except RecordRefusedError as error:
            if len(batch.changes) > 1:
                half = len(batch.changes) // 2
                self._write(part, replace(batch, changes=batch.changes[:half]))
                self._write(part, replace(batch, changes=batch.changes[half:], begins_snapshot=False))
                return
            key = batch.changes[0].key
            if self._on_error is OnRecordError.STOP:
                raise RecordRefusedError(
                    f"record {key}: {error}; on_record_error: dead_letter stores such records in {DEAD_LETTERS}/, skip "
                    "leaves them out"
                ) from error
            log.warning("stream %s leaves record %s out: %s", self._settings.stream, key, error)
            if self._on_error is OnRecordError.DEAD_LETTER:
                text = message_of(batch.changes[0], batch.commit, ChangeMode.CHANGES)
                self._letters.append(f'{{"error":{json.dumps(str(error))},"change":{text}}}')

    def _store_letters(self, sequence: int) -> None:
        """Store the refused records before the file of their number: a run that dies in between stores them again."""
        if not self._letters:
            return
        folder = f"{self._folder}/{DEAD_LETTERS}"
        if self._has_folders:
            self._fs.makedirs(folder, exist_ok=True)
        self._fs.pipe_file(f"{folder}/{sequence:012d}.jsonl", "".join(f"{text}\n" for text in self._letters).encode())
        self._letters = []

    def _full(self, error: OSError) -> SinkUnavailableError:
        """Return the error of a disk that is full, with its place; nothing of this run stays there."""
        self.close()
        return SinkUnavailableError(f"{self._part_path}: {error}")

    def commit(self, checkpoint: Checkpoint) -> None:
        """Add the checkpoint and give the file its name. Raises SinkFencedError when another run took the number."""
        stream, part = self._begun()
        try:
            part.finish(to_text(checkpoint))
            stream.flush()
            os.fsync(stream.fileno())
            stream.close()
        except OSError as error:
            raise self._full(error) from error
        self._stream = self._part = None
        folder = self._folder
        if checkpoint.sequence >= FILES_IN_A_FOLDER:
            folder = f"{folder}/{checkpoint.sequence // FILES_IN_A_FOLDER:09d}"
        target = f"{folder}/{checkpoint.sequence:012d}.{self._suffix}"
        try:
            if self._has_folders and folder not in (self._folder, self._made):
                self._fs.makedirs(folder, exist_ok=True)
                self._made = folder
            self._store_letters(checkpoint.sequence)
            self._publish(checkpoint.sequence, target)
        except OSError as error:
            raise SinkUnavailableError(f"{target}: {error}") from error
        finally:
            with suppress(OSError):
                os.unlink(self._part_path)

    def read_rows(self, key: Sequence[str], checkpoint: Checkpoint) -> Iterator[Row]:
        """Return the rows in the files of the checkpoint's generation, oldest first. Raises ConfigError for Parquet."""
        if self._suffix != "jsonl":
            raise ConfigError(f"{self._folder} has files of format {self._suffix}: rows are read back from format json")
        try:
            for path in self._list_files():
                with self._fs.open(path, "rb") as stream:
                    if from_text(checkpoint_in(stream, path)).generation < checkpoint.generation:
                        continue
                    stream.seek(0)
                    for line in _lines(stream):
                        if not line.startswith(_MARK):
                            yield row_of_message(load_json(line.decode()), key, self._settings.mode)
        except OSError as error:
            raise SinkUnavailableError(f"{self._folder}: {error}") from error

    def as_read(self, change: Change) -> Row:
        """Return a row as its line has it."""
        return json_row(change)

    def close(self) -> None:
        """Remove the file that was not committed. A full disk refuses what the buffers have, and keeps the file."""
        self._letters = []
        if self._stream is not None and self._part is not None:
            stream = self._stream
            part = self._part
            self._stream = self._part = None
            for end in (part.close, stream.close, partial(os.unlink, self._part_path)):
                with suppress(OSError):
                    end()

    def _begun(self) -> tuple[BinaryIO, Part]:
        if self._stream is not None and self._part is not None:
            return self._stream, self._part
        # Next to the others when that is a local folder: a link cannot cross file systems.
        folder = self._folder if self._is_local else tempfile.gettempdir()
        self._part_path = f"{folder}/.{uuid.uuid4().hex}.part"
        self._stream = open(self._part_path, "wb")  # noqa: SIM115 - closed by commit or close
        self._part = self._make_part(self._stream, self._settings.mode)
        return self._stream, self._part

    def _publish(self, sequence: int, target: str) -> None:
        try:
            if self._is_local:
                # Unlike a rename, a link fails when the name exists.
                os.link(self._part_path, target)
            elif self._is_hdfs:
                self._publish_by_rename(target)
            else:
                # Object stores show a file when it is complete, and only if no other run created it meanwhile.
                self._copy_part(target, "xb")
        except FileExistsError:
            raise SinkFencedError(f"another run has written number {sequence} of {self._folder} already") from None
        except FileNotFoundError:
            if Path(self._part_path).exists():
                raise
            raise SinkFencedError(f"another run has opened {self._folder}, and removed this one's file") from None

    def _publish_by_rename(self, target: str) -> None:
        # A file on HDFS is visible while it is written, and a rename never replaces a file.
        aside = f"{self._folder}/{os.path.basename(self._part_path)}"
        try:
            self._copy_part(aside, "wb")
            self._fs.mv(aside, target)
        except BaseException:
            with suppress(OSError):
                self._fs.rm(aside)
            raise

    def _copy_part(self, path: str, mode: str) -> None:
        with self._fs.open(path, mode) as stream, open(self._part_path, "rb") as part:
            shutil.copyfileobj(part, stream)


def _paths(folder: str, names: Iterable[str]) -> list[str]:
    return [f"{folder}/{name}" for name in names if _FILE.fullmatch(name)]


def _folders_in(names: Iterable[str]) -> list[str]:
    """Return the folders of files, that with the highest numbers first."""
    return sorted((name for name in names if _FOLDER.fullmatch(name)), reverse=True)


def _json() -> tuple[Callable[[BinaryIO, ChangeMode], Part], Callable[[BinaryIO, str], str]]:
    return JsonLinesPart, checkpoint_in


def _parquet() -> tuple[Callable[[BinaryIO, ChangeMode], Part], Callable[[BinaryIO, str], str]]:
    try:
        # Not at the top: JSON must do without it.
        from airflow_lake_provider.replication.formats import parquet
    except ModuleNotFoundError as error:
        raise ConfigError(f"format: parquet needs {error.name} on Spark's driver: install pyarrow") from error
    return parquet.ParquetPart, parquet.checkpoint_in


# --- A file of JSON lines that grows batch by batch; its last line is the checkpoint, `{"checkpoint": {...}}`


_MARK = b'{"checkpoint": '
# A checkpoint names at most some dozen commits; a schema may make it longer, and then this reads the whole file.
_TAIL_BYTES = 16_384
_CHUNK_BYTES = 1 << 20


class JsonLinesPart:
    """One file that is not visible yet."""

    def __init__(self, stream: BinaryIO, mode: ChangeMode) -> None:
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


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Return a file's lines without their ends. Files of HDFS are not iterated by lines."""
    rest = b""
    while chunk := stream.read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest


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
