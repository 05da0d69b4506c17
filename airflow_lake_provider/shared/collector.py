"""Python's search for garbage, which is paused while many objects are made that no cycle holds."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def collector_paused() -> Iterator[None]:
    """Search for no cycles inside: while half a million objects are made that is up to two thirds of the time.

    Of threads that do this at the same time the first to end may switch the search on for all, which costs time only.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
