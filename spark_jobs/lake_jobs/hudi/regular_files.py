"""Files on this machine's own disks, read without Java: only what is a file, and within a limit."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILE_BYTES = 128 * 2**20
"""A driver may serve many tables, and a writer of one of them chooses how large a file is."""


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
