"""A table's base path: its one spelling, an identifier safe for any use, and the tables that lie below a root."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import LakeError, MalformedRequestError, PathNotAllowedError
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.shared.plain_text import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from airflow_lake_provider.storage.table_storage import Storage

MAX_NAME_LENGTH = 500
MAX_BASE_PATH_LENGTH = 2000
_MOUNTS = "viewfs"
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:")
_SLUG_LENGTH = 40
_HASH_LENGTH = 16


def normalise_base_path(base_path: str) -> str:
    """Return the one spelling of a base path: no `file:` scheme, single slashes, none at the end.

    Raises MalformedRequestError for what is no absolute path, PathNotAllowedError for `.` and `..` segments (a path
    that has to be resolved first could point anywhere).
    """
    if not base_path or len(base_path) > MAX_BASE_PATH_LENGTH:
        raise MalformedRequestError(f"base path must have 1 to {MAX_BASE_PATH_LENGTH} characters")
    if has_hidden_characters(base_path):
        raise MalformedRequestError(f"base path {base_path!r} contains control or invisible characters")
    scheme, authority, path = _split(base_path)
    if not path.startswith("/"):
        raise MalformedRequestError(f"base path {base_path!r} is not absolute")
    if scheme == _MOUNTS:
        raise PathNotAllowedError(
            f"base path {base_path!r} is a mount of viewfs, a second name of a table: use the path behind the mount, "
            "hdfs://<nameservice>/..., here and in the writers' callbacks"
        )
    segments = [segment for segment in path.split("/") if segment]
    if any(segment in {".", ".."} for segment in segments):
        raise PathNotAllowedError(f"base path {base_path!r} contains a '.' or '..' segment")
    if not segments:
        raise MalformedRequestError(f"base path {base_path!r} is the root of a store, not a table")
    joined = "/" + "/".join(segments)
    return joined if scheme == "" else f"{scheme}://{authority}{joined}"


_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of Unicode: control characters, those without a shape (U+202E turns the text behind it around), halves of
characters, which no encoding takes, and breaks.
"""


def has_hidden_characters(text: str) -> bool:
    """Whether a text is not what a person sees of it, because it holds control or invisible characters."""
    # Nothing printable is in these categories, and this is a hundred times as quick.
    return not text.isprintable() and any(unicodedata.category(character) in _HIDDEN for character in text)


def _split(base_path: str) -> tuple[str, str, str]:
    match = _SCHEME.match(base_path)
    if match is None:
        return "", "", base_path
    scheme = match.group(0)[:-1].lower()
    rest = base_path[match.end() :]
    authority = ""
    if rest.startswith("//"):
        authority, slash, tail = rest[2:].partition("/")
        rest = slash + tail
    if scheme == "file":
        if authority not in {"", "localhost"}:
            raise MalformedRequestError(f"base path {base_path!r} names a host in a file: path")
        return "", "", rest
    return scheme, authority, rest


def store_of(base_path: str) -> str:
    """Return scheme and authority of a normalised base path, for example `s3a://lake`; empty for a local path."""
    scheme, separator, rest = base_path.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if separator else ""


def require_allowed(base_path: str, allowed_roots: tuple[str, ...]) -> None:
    """Raise PathNotAllowedError unless the normalised path is one of the roots or lies below one."""
    if is_below(base_path, allowed_roots):
        return
    doubled = find_second_name((*allowed_roots, base_path))
    if doubled is not None:
        raise PathNotAllowedError(
            f"base path {base_path!r} may be a second name of a table below {doubled[0]}: one of them names no "
            "NameNode; write it as [lake] allowed_roots does, here and in the writers"
        )
    raise PathNotAllowedError(
        f"base path {base_path!r} lies outside the configured roots; add its root to [lake] allowed_roots"
    )


def find_second_name(roots: Sequence[str]) -> tuple[str, str] | None:
    """Return two roots that may name the same tables of an HDFS: one of them leaves the NameNode to the configuration.

    Which NameNode that is differs from process to process, so no name can be made of the other.
    """
    known: list[tuple[str, str, str]] = []
    for root in roots:
        scheme, separator, rest = identity_of(normalise_root(root)).partition("://")
        if not separator or scheme != "hdfs":
            continue
        host, _, path = rest.partition("/")
        for other, other_host, other_path in known:
            if bool(host) != bool(other_host) and _overlap(path, other_path):
                return other, root
        known.append((root, host, path))
    return None


def _overlap(path: str, other: str) -> bool:
    shorter, longer = sorted((f"{path.rstrip('/')}/".lstrip("/"), f"{other.rstrip('/')}/".lstrip("/")), key=len)
    return longer.startswith(shorter)


def is_below(base_path: str, roots: tuple[str, ...]) -> bool:
    """Whether the normalised path is one of the roots or lies below one, in any spelling."""
    # A reader names ten thousand tables in one request.
    return f"{identity_of(base_path)}/".startswith(_identities_of(roots))


@lru_cache(maxsize=256)
def _identities_of(roots: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{identity_of(normalise_root(root)).rstrip('/')}/" for root in roots)


def normalise_root(root: str) -> str:
    """Return the one spelling of a root, which, unlike a table, may be a whole store: `s3a://bucket`.

    Raises what `normalise_base_path` raises.
    """
    scheme, authority, path = _split(root)
    if scheme and authority and not path.strip("/"):
        return f"{scheme}://{authority}"
    return normalise_base_path(root)


_SAME_STORE = {
    "s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs", "webhdfs": "hdfs", "swebhdfs": "hdfs",
}  # fmt: skip
"""Schemes of one store. Hudi's lock providers, too, take s3a and s3 for the same table (`FSUtils.s3aToS3`)."""
_DEFAULT_PORTS = {
    "hdfs": ":8020", "webhdfs": ":9870", "swebhdfs": ":9871", "s3": ":443", "s3a": ":443", "s3n": ":443",
}  # fmt: skip


def identity_of(base_path: str) -> str:
    """Return one text for all spellings of a normalised base path; Hudi and Spark cannot open a table by it.

    Schemes of one store are one, the authority is in lower case and has no default port: storage accounts, hosts and
    buckets' names ignore case, paths do not.
    """
    scheme, separator, rest = base_path.partition("://")
    if not separator:
        return base_path
    authority, slash, path = rest.partition("/")
    same = _SAME_STORE.get(scheme, scheme)
    host = authority.lower()
    for name in dict.fromkeys((scheme, same)):
        host = host.removesuffix(_DEFAULT_PORTS.get(name, ":"))
    return f"{same}://{host}{slash}{path}"


def table_id_of(base_path: str) -> str:
    """Return the table's identifier: letters, digits, `-` and `_` only; the last folder's name, then a hash.

    The hash of `identity_of` makes it unique, the same for each spelling of the path; the name is for people.
    """
    name = base_path.rsplit("/", 1)[-1]
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^A-Za-z0-9_]+", "-", plain).strip("-")[:_SLUG_LENGTH] or "table"
    digest = hashlib.sha256(identity_of(base_path).encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{slug}-{digest}"


# --- Find the tables below a root by listing folders: bounded, and never outside the root
#
# A folder with `.hoodie` in it is a table; what lies below a table belongs to it and is not searched. Folders whose
# names begin with `.` or `_` hold no tables. On a local disk a link that leads out of the root is not followed.


MAX_FOLDERS = 100_000
MAX_PROBLEMS = 100
_HUDI_FOLDER = ".hoodie"


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table: its base path, and the name that its properties give it."""

    base_path: str
    name: str


@dataclass(frozen=True, slots=True)
class FoundTables:
    """What lies below a root. `problems` are folders that could not be read, and why."""

    tables: tuple[FoundTable, ...]
    problems: tuple[str, ...]
    folders: int
    is_complete: bool
    """False when there are more folders than are searched, or a folder could not be listed."""


def discover_tables(
    root: str, open_storage: Callable[[str], Storage], depth: int, most_folders: int = MAX_FOLDERS
) -> FoundTables:
    """Return the tables at a root and up to `depth` levels below it. Raises StorageError when no client can be made."""
    walk = _Walk(open_storage(root), depth, most_folders)
    tables, unread = read_tables((f"{root.rstrip('/')}/{folder}" for folder in walk.table_folders()), open_storage)
    problems = (first_line(problem) for problem in (*unread, *walk.problems)[:MAX_PROBLEMS])
    return FoundTables(tuple(tables), tuple(problems), walk.folders, walk.is_complete)


def read_tables(paths: Iterable[str], open_storage: Callable[[str], Storage]) -> tuple[list[FoundTable], list[str]]:
    """Return the tables at these paths with their names, and why one cannot be read."""
    tables = []
    problems = []
    for path in paths:
        try:
            base_path = normalise_base_path(path)
            name = load_table_properties(open_storage(base_path)).name.strip()
            if len(name) > MAX_NAME_LENGTH or has_hidden_characters(name):
                raise MalformedRequestError(
                    f"table {base_path} has a name of more than {MAX_NAME_LENGTH} characters, or of characters that no "
                    "one sees: its writer has to change hoodie.table.name"
                )
            tables.append(FoundTable(base_path, name or base_path.rsplit("/", 1)[-1]))
        except LakeError as error:  # a damaged table must not hide the others, nor have the manager refuse all of them
            problems.append(str(error))
    return tables, problems


def is_really_below(path: str, real_root: str) -> bool:
    """Whether a path on the local disk is below a root when all links are resolved; those of the root are already."""
    return os.path.realpath(path).startswith(real_root.rstrip("/") + "/")


class _Walk:
    """Breadth first, so that a bound cuts off what lies deepest."""

    def __init__(self, storage: Storage, depth: int, most_folders: int) -> None:
        self._storage = storage
        self._depth = depth
        self._most_folders = most_folders
        self._real_root = os.path.realpath(storage.root) if storage.is_local else ""
        self.folders = 0
        self.problems: list[str] = []
        self.is_complete = True

    def table_folders(self) -> Iterator[str]:
        """Yield the folders of tables, relative to the root."""
        waiting = deque([("", 0)])
        while waiting:
            if self.folders >= self._most_folders:
                self.is_complete = False
                self.problems.append(f"more than {self._most_folders} folders: the rest is not searched")
                return
            folder, level = waiting.popleft()
            names = self._list_folders(folder)
            if _HUDI_FOLDER in names:
                yield folder
            elif level < self._depth:
                children = (f"{folder}/{name}" if folder else name for name in sorted(names))
                waiting.extend((child, level + 1) for child in children if self._may_enter(child))

    def _list_folders(self, folder: str) -> list[str]:
        self.folders += 1
        try:
            return [entry.name for entry in self._storage.list_entries(folder) if entry.is_folder]
        except (LakeError, FileNotFoundError) as error:
            self.is_complete = False
            self.problems.append(f"{self._storage.base_path}/{folder}: {error}")
            return []

    def _may_enter(self, folder: str) -> bool:
        if folder.rsplit("/", 1)[-1].startswith((".", "_")):
            return False
        if not self._real_root:
            return True
        if is_really_below(f"{self._storage.root}/{folder}", self._real_root):
            return True
        self.problems.append(f"{self._storage.base_path}/{folder} leads out of the root and is not followed")
        return False
