"""Bounds in seconds for tests: what costs without a bound is found on any machine, and a busy one fails no test."""

from __future__ import annotations

from local_stack.processes import PATIENCE


def patient(bound_s: float) -> float:
    """Return a bound for an idle machine, in seconds of CPU or of a clock, as this machine is given it."""
    return bound_s * max(1.0, PATIENCE)
