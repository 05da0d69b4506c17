"""Which folders below a base path are read for a table of its own, and in which order."""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

MAX_FOLDERS = 500
"""Folders that one run reads: each costs two questions, and services of tables with a metadata table list none."""

_THREADS = 8


class Folder(Enum):
    """What a folder below the base path is."""

    TABLE = auto()
    PARTITION = auto()
    """Hudi's listing ends there."""
    OTHER = auto()


def find_inner_table(list_folders: Callable[[str], Sequence[str]], kind_of: Callable[[str], Folder]) -> str:
    """Return the uppermost folder of another table that Hudi's listing gets to, empty when none was found.

    Of more than `MAX_FOLDERS` folders those are read first whose names are rare in form.
    """
    left = MAX_FOLDERS
    folders = list(list_folders(""))
    with ThreadPoolExecutor(_THREADS) as pool:
        while folders and left:
            chosen = rare_first(folders)[:left]
            left -= len(chosen)
            kinds = dict(zip(chosen, pool.map(kind_of, chosen), strict=True))
            found = sorted(folder for folder, kind in kinds.items() if kind is Folder.TABLE)
            if found:
                return found[0]
            folders = [
                f"{folder}/{name}"
                for folder, kind in kinds.items()
                if kind is Folder.OTHER
                for name in list_folders(folder)
            ]
    return ""


def rare_first(folders: Collection[str]) -> list[str]:
    """Return the folders, those first whose names are like few others': a table's own partitions are alike."""
    forms = Counter(map(_form_of, folders))
    return sorted(folders, key=lambda folder: (forms[_form_of(folder)], folder))


def _form_of(folder: str) -> str:
    name = re.sub(r"\d", "0", folder.rpartition("/")[2])
    column, is_hive_style, _ = name.partition("=")
    return column if is_hive_style else name
