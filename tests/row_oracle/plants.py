"""Brings defects back that cost rows, one at a time, to show that random histories find them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Put = Callable[[Any, str, Any], None]
"""Sets an attribute of a class or module, as `setattr` does."""


@dataclass(frozen=True, slots=True)
class Plant:
    """A defect, and the seed from which random histories found it within 20 minutes."""

    put: Callable[[Put], None]
    seed: int


PLANTS: Mapping[str, Plant] = {}
