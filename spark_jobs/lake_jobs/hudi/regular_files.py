"""Files on this machine's own disks, read without Java: only what is a file, and within a limit."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILE_BYTES = 128 * 2**20
"""A driver may serve many tables, and a writer of one of them chooses how large a file is."""


def is_odd(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of a folder is a link, or neither a file nor a folder; not one that has just vanished."""
    if entry.is_symlink():
        return True
    if entry.is_file() or entry.is_dir():
        return False
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def read_regular(path: Path) -> bytes:
    """Return a file's content. Raises OSError for what is no file, or too large: a pipe or a device never ends."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is no file")
        if status.st_size > MAX_FILE_BYTES:
            raise OSError(f"{path} has more than {MAX_FILE_BYTES:,} bytes")
        return stream.read(MAX_FILE_BYTES)
