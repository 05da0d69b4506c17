"""Which store a base path lies on. One store, and so one client, serves all tables of the same scheme, authority and
options.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import fsspec

from airflow_lake_provider.errors import StorageOptionError
from airflow_lake_provider.timeline.store import FsspecStore, LocalStore, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Options change when credentials are renewed; then the client of the old ones is let go some day.
MAX_STORES = 64

_LOCAL = LocalStore()


def open_store(base_path: str, options: Mapping[str, Any]) -> tuple[Store, str]:
    """Return the store and the base path in its spelling. A bare path is local.

    Raises StorageError when the scheme's library is not installed or the options do not fit.
    """
    scheme, separator, rest = base_path.partition("://")
    if not separator:
        return _LOCAL, base_path.rstrip("/") or "/"
    opener = _OPENERS.get(scheme.lower())
    if opener is None:
        return _open_with_fsspec(base_path, options)
    authority, _, path = rest.partition("/")
    # Hadoop takes several slashes for one, and so do the writers.
    segments = [segment for segment in path.split("/") if segment]
    if opener is _open_s3:
        return _STORES.get("s3", authority, options, opener), "/".join([authority, *segments])
    return _STORES.get(scheme.lower(), authority, options, opener), "/" + "/".join(segments)


class _Stores:
    """The stores in use, by what they were opened with."""

    def __init__(self, max_stores: int = MAX_STORES) -> None:
        self._max_stores = max_stores
        self._lock = threading.Lock()
        self._stores: OrderedDict[tuple[str, str, str], Store] = OrderedDict()

    def get(
        self, scheme: str, authority: str, options: Mapping[str, Any], opener: Callable[[str, Mapping[str, Any]], Store]
    ) -> Store:
        key = (scheme, authority, json.dumps(dict(options), sort_keys=True, default=repr))
        with self._lock:
            store = self._stores.get(key)
            if store is None:
                store = self._stores[key] = opener(f"{scheme}://{authority}", options)
            self._stores.move_to_end(key)
            while len(self._stores) > self._max_stores:
                self._stores.popitem(last=False)
            return store


_STORES = _Stores()


def _open_hdfs(url: str, options: Mapping[str, Any]) -> Store:
    try:
        from airflow_lake_provider.timeline.hdfs_store import HdfsStore  # its library is optional
    except ImportError as error:
        raise StorageOptionError(
            f"{url} needs hdfs-native: pip install 'airflow-lake-provider[hdfs]' ({error})"
        ) from error
    return HdfsStore(url, options)


def _open_s3(url: str, options: Mapping[str, Any]) -> Store:
    try:
        from airflow_lake_provider.timeline.s3_store import S3Store  # pyarrow can be built without S3
    except ImportError as error:
        raise StorageOptionError(
            f"{url} needs a pyarrow that was built with S3: pip install pyarrow ({error})"
        ) from error
    return S3Store(options)


_OPENERS: dict[str, Callable[[str, Mapping[str, Any]], Store]] = {
    "hdfs": _open_hdfs,
    "viewfs": _open_hdfs,
    "s3": _open_s3,
    "s3a": _open_s3,
}


def _open_with_fsspec(base_path: str, options: Mapping[str, Any]) -> tuple[Store, str]:
    try:
        fs, root = fsspec.core.url_to_fs(base_path, **dict(options))
    except ImportError as error:  # fsspec says which package is missing
        raise StorageOptionError(f"no storage for {base_path!r}: {error}") from error
    except (ValueError, TypeError, OSError) as error:
        raise StorageOptionError(f"no storage for {base_path!r} with options {sorted(options)}: {error}") from error
    root = str(root).rstrip("/")
    if isinstance(fs, fsspec.get_filesystem_class("file")):
        return _LOCAL, root or "/"
    return FsspecStore(fs), root
