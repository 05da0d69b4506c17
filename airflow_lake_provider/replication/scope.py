"""What a stream's position is a position of: the target that has its rows, and what the stream writes there; pure.

A checkpoint stays behind where a table or topic is replaced under its name, and an entry may name another one, or
another key. The position then counts rows that the target does not have. So it comes with its scope, and in another
scope the stream begins with a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

Scope: TypeAlias = tuple[tuple[str, str], ...]
"""Aspects by name, in the order of their names."""


@dataclass(frozen=True, slots=True)
class TargetState:
    """The target of a stream, as its server has it now."""

    identity: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What distinguishes it from every other one, also from one of its name that was made later."""
    is_empty: bool = False
    """It holds no row, and its server could not say whether it is the same table."""


@runtime_checkable
class TargetSink(Protocol):
    """A sink whose checkpoint may outlive its target, or may be of another one."""

    def find_target(self) -> TargetState:
        """Return the target of the sink, which is open."""


def scope_of(target: Mapping[str, str], meaning: Mapping[str, str]) -> Scope:
    """Return the scope of a stream that writes this to that target."""
    return tuple(sorted({**target, **meaning}.items()))


def find_other_scope(durable: Scope, present: Scope) -> str:
    """Return in one sentence what a position is not a position of; empty when it holds.

    An aspect that one of both does not know decides nothing: releases until 1.0 recorded none.
    """
    known = dict(durable)
    changed = [f"{name} was {known[name]} and is {now}" for name, now in present if known.get(name, now) != now]
    return f"the sink's position is one of another target or meaning: {', '.join(changed)}" if changed else ""
