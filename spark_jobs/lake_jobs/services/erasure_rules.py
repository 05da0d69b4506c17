"""Which keys an erasure is about, how a file's bytes show one, and what keeps a file that has one. Pure.

Keys are personal data: what leaves this module for a log, a message or the receipt has a keyed hash in their place.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import struct
import zlib
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import METADATA_TABLE
from lake_jobs.replication.file_slices import parse_name
from lake_jobs.replication.log_records import NotAlikeError, list_keys
from lake_jobs.services.quarantine import FOLDER as QUARANTINE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

KEYS_FILE = "keys.jsonl"
STATE_FILE = "erasure.json"
RECEIPT_FILE = "receipt.json"
MAX_KEYS = 1_000
"""Number of keys of one run: each is searched for in the bytes of every file."""
MIN_PLAIN_BYTES = 8
"""A shorter text occurs in any large file by chance."""
MIN_AVRO_BYTES = 4
"""The same where Avro writes its length before it."""
SHOWN_HASH = 16
AUX = ".hoodie/.aux"
MAX_SHOWN = 20
"""Number of keys that a report shows one by one."""
_ENDS_LINE = frozenset("\r\n")
_GZIP = b"\x1f\x8b\x08"
_HFILE_BLOCK = b"DATABLK*"
_HFILE_HEADER = 33
_SIZES = struct.Struct(">ii")
_MAX_SUFFIX = 32
"""Bytes of an HFile's key after its row, at most."""
_PARQUET = b"PAR1"


class UnreadableError(Exception):
    """A file's content is packed in a way that is not known here."""


@dataclass(frozen=True, slots=True)
class ErasedKey:
    """A record key of the file of keys, by its line; of one partition, or of all."""

    line: int
    key: str
    partition: str | None = None


@dataclass(frozen=True, slots=True)
class ErasureState:
    """What the steps of one erasure know of each other, next to the file of keys."""

    id: str
    secret: str
    partitions: tuple[str, ...] = ()
    """Those that had files with a key."""
    seen: tuple[int, ...] = ()
    """Lines of the keys that readers saw before the deletion."""


class Trace(StrEnum):
    """How a file shows that it has a key."""

    ROW = "row"
    LOG = "log record"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Place:
    """One file, below the table's base path, that has one key."""

    line: int
    path: str
    trace: Trace
    written: str = ""
    """The commit that wrote the row, where that is known."""


@dataclass(frozen=True, slots=True)
class Keepers:
    """What keeps files of a table."""

    saved: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Savepoints by the names of their files."""
    pending: frozenset[str] = frozenset()
    """Requested times of pending writes and plans."""
    deletion: str = ""
    """The instant that deleted the keys."""
    live: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """The commit that wrote it, by the line of each key that readers see."""
    held: str = ""
    """The instant from which a sink or a reader holds the table's files."""


@dataclass(frozen=True, slots=True)
class KeyReceipt:
    """What became of one key. Times are ISO 8601 in UTC."""

    line: int
    hmac: str
    deleted_at: str
    """Empty where readers did not see the key when the run began."""
    gone_at: str
    """When a search found it in no file; empty while one has it."""
    kept: tuple[str, ...]
    """Each file that has it, and what keeps that."""
    bytes_searched: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The outcome of an erasure: what was searched, and each key."""

    table: str
    erasure: str
    deletion: str
    searched_at: str
    files: int
    bytes: int
    keys: tuple[KeyReceipt, ...]
    unread: tuple[str, ...]
    elsewhere: tuple[str, ...]
    """What other places may have the keys, which are not searched."""

    @property
    def gone(self) -> int:
        """How many keys are gone."""
        return sum(1 for key in self.keys if key.gone_at)


def read_keys(content: bytes) -> tuple[ErasedKey, ...]:
    """Return the keys of the file. Raises ServiceRefusedError with the number of a wrong line, and never its text."""
    keys = []
    for line, text in enumerate(content.decode(errors="replace").split("\n"), 1):
        if not text.strip():
            continue
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        is_known = isinstance(found, dict) and {"key"} <= found.keys() <= {"key", "partition"}
        if not is_known or not all(map(_is_text, found.values())) or not found["key"]:
            raise ServiceRefusedError(
                f'line {line} of {KEYS_FILE} is not {{"key": "...", "partition": "..."}} with texts; partition may be '
                "left out"
            )
        keys.append(ErasedKey(line, found["key"], found.get("partition")))
    if not keys or len(keys) > MAX_KEYS:
        raise ServiceRefusedError(f"{KEYS_FILE} has {len(keys):,} keys: give 1 to {MAX_KEYS:,} of them to a run")
    return tuple(keys)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not _ENDS_LINE & set(value)


def hash_key(secret: str, key: ErasedKey) -> str:
    """Return a key's hash; without the secret it cannot be found by trying keys."""
    text = json.dumps([key.key, key.partition])
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def hide_keys(text: str, keys: Iterable[ErasedKey], secret: str) -> str:
    """Return a text, such as an error of Hudi's, with hashes in the place of the keys."""
    for key in sorted(keys, key=lambda found: -len(found.key)):
        text = re.sub(rf"(?<!\w){re.escape(key.key)}(?!\w)", f"<{hash_key(secret, key)[:SHOWN_HASH]}>", text)
    return text


# --- A file's bytes


def describe_search(key: str) -> str:
    """Return how a key is searched for in bytes; its length decides."""
    size = len(key.encode())
    if size >= MIN_PLAIN_BYTES:
        return "plain"
    return "with its length" if size >= MIN_AVRO_BYTES else "as a row of an index"


def unpack(content: bytes) -> list[bytes]:
    """Return a file's bytes, and what is packed in them. Raises UnreadableError for what is packed in another way."""
    parts = [content]
    at = content.find(_GZIP)
    while at >= 0:
        unpacker = zlib.decompressobj(wbits=31)
        try:
            parts.append(unpacker.decompress(content[at:]))
            rest = len(unpacker.unused_data) if unpacker.eof else 0
            at = content.find(_GZIP, max(at + 1, len(content) - rest))
        except zlib.error:  # not the begin of one
            at = content.find(_GZIP, at + 1)
    block = content.find(_HFILE_BLOCK)
    while block >= 0:
        begin = block + _HFILE_HEADER
        if begin + len(_GZIP) > len(content):  # the end of a part of a file, with which the next part begins
            break
        packed, unpacked = _SIZES.unpack_from(content, block + len(_HFILE_BLOCK))
        if not content.startswith(_GZIP, begin) and abs(packed - unpacked) > _HFILE_HEADER:
            raise UnreadableError("its blocks are not packed by gzip")
        block = content.find(_HFILE_BLOCK, begin)
    if _PARQUET in content and b"#HUDI#" in content:
        raise UnreadableError("its blocks are of Parquet, until the task rewrite compacts and cleans them")
    return parts


def find_in_bytes(parts: Sequence[bytes], keys: Iterable[ErasedKey]) -> set[int]:
    """Return the lines of the keys that bytes have: as a text, with Avro's length before it, or as an HFile's row."""
    return {key.line for key in keys if any(_has(part, key.key.encode()) for part in parts)}


def _has(part: bytes, key: bytes) -> bool:
    if len(key) >= MIN_PLAIN_BYTES:
        return key in part
    if len(key) >= MIN_AVRO_BYTES and bytes([2 * len(key)]) + key in part:
        return True
    row = len(key).to_bytes(2, "big") + key
    at = part.find(row, _SIZES.size)
    while at >= 0:
        size, _ = _SIZES.unpack_from(part, at - _SIZES.size)
        if len(row) <= size <= len(row) + _MAX_SUFFIX:
            return True
        at = part.find(row, at + 1)
    return False


def find_in_log(content: bytes, keys: Sequence[ErasedKey], partition: str) -> set[int]:
    """Return the lines of the keys of which a log file has records. Raises UnreadableError."""
    wanted = [key for key in keys if key.partition in {None, partition}]
    try:
        found = list_keys(content)
    except NotAlikeError:
        return find_in_bytes(unpack(content), wanted)
    return {key.line for key in wanted if key.key in found}


# --- What keeps a file, and the words for people


def explain_place(place: Place, keepers: Keepers) -> str:
    """Return what keeps a file that has a key, and what to do."""
    if place.path.startswith(".hoodie/"):
        return _explain_own(place.path)
    if savepoint := keepers.saved.get(place.path.rpartition("/")[2]):
        return f"savepoint {savepoint} keeps it: delete the savepoint, then clear the task rewrite"
    file = parse_name(place.path.rpartition("/")[2])
    instant = file.instant if file is not None else ""
    if instant in keepers.pending:
        return f"{instant} is pending: wait for its end or its rollback, then clear the task rewrite"
    live = keepers.live.get(place.line)
    if live and keepers.deletion and max(place.written or instant, live) > keepers.deletion:
        return f"commit {live} wrote the key again after deletion {keepers.deletion}: run it again"
    if live:
        return "readers see the key: it is not deleted"
    if place.trace is Trace.BYTES:
        return "no row of it has this key, but another value has its bytes"
    if keepers.held:
        return f"a sink or a reader holds what was written since {keepers.held}: wait for it, then clear rewrite"
    return "an older version of its file group: clear the task rewrite, which compacts and cleans"


def _explain_own(path: str) -> str:
    """Return what keeps a file below `.hoodie`."""
    if path.startswith(f"{METADATA_TABLE}/"):
        part = path.removeprefix(f"{METADATA_TABLE}/").partition("/")[0]
        return (
            f"{part} of the metadata table: clear the task rewrite; what stays after it goes where that index is "
            "dropped and built again (lake_reindex)"
        )
    if path.startswith(f"{QUARANTINE}/"):
        return "the service orphans has quarantined it: wait for orphans.keep_days, or delete that folder"
    if path.startswith(f"{AUX}/lake_"):
        return "a report of this provider names it: see airflow lake doctor, and lift what it reports"
    return "the table's own records have it, from which Hudi takes nothing: only a copy of the table lacks it"


def write_receipt(
    searched: Receipt, keys: Sequence[tuple[ErasedKey, str, str]], places: Iterable[Place], keepers: Keepers
) -> Receipt:
    """Return the receipt with what the search found of each key; `searched` has the keys of an earlier one.

    `keys` come with their hashes and the times of their deletion.
    """
    before = {key.hmac: key.gone_at for key in searched.keys}
    kept: dict[int, list[str]] = {}
    for place in sorted(places, key=lambda found: (found.line, found.path)):
        kept.setdefault(place.line, []).append(f"{place.path} ({place.trace}): {explain_place(place, keepers)}")
    made = []
    for key, hashed, deleted_at in keys:
        is_gone = key.line not in kept and not searched.unread
        gone_at = (before.get(hashed) or searched.searched_at) if is_gone else ""
        made.append(
            KeyReceipt(key.line, hashed, deleted_at, gone_at, tuple(kept.get(key.line, ())), describe_search(key.key))
        )
    return replace(searched, keys=tuple(made))


def describe_receipt(receipt: Receipt) -> list[str]:
    """Return the receipt in lines, for a log and for approval."""
    lines = [f"searched {receipt.files:,} files of {receipt.bytes:,} bytes: {receipt.gone} of {len(receipt.keys)} keys"]
    lines[0] += " are in none of them"
    for key in [found for found in receipt.keys if not found.gone_at][:MAX_SHOWN]:
        lines.append(f"key {key.hmac[:SHOWN_HASH]} (line {key.line}) is in {len(key.kept)} files")
        lines += [f"    {reason}" for reason in key.kept[:MAX_SHOWN]]
    lines += [f"not readable, so no key counts as gone: {path}" for path in receipt.unread[:MAX_SHOWN]]
    return [*lines, *(f"elsewhere: {text}" for text in receipt.elsewhere)]


def list_partitions(paths: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    """Return the partitions that have, or had, files with a key."""
    found = {path.rpartition("/")[0] for path in paths if not path.startswith(".hoodie")}
    return tuple(sorted(found | set(known)))
