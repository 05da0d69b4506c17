"""The same notices against a queue as Airflow's for assets: what becomes of commits there.

A row per (asset, DAG) keeps the time of its first event. The scheduler starts a run for the row, gives it the events up
to that time, and deletes the row; an event that came after that time and before the scheduler's pass has no row any
more, and waits for the next event.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence


def lost_commits(
    delivered: Iterable[tuple[int, str, str]], seed: int, within_ms: int | None = None
) -> set[tuple[str, str]]:
    """Return the commits whose event no run was given, though every event arrived and every run succeeded.

    With `within_ms` also those that had to wait longer than that, for another commit to come.
    """
    rng = random.Random(seed)
    by_asset: dict[str, list[tuple[int, str]]] = {}
    for at_ms, asset, instant in delivered:
        by_asset.setdefault(asset, []).append((at_ms, instant))
    lost = set()
    for asset, events in by_asset.items():
        waits = _waits(sorted(events), rng)
        for _, instant in events:
            if instant not in waits or (within_ms is not None and waits[instant] > within_ms):
                lost.add((asset, instant))
    return lost


def _waits(events: Sequence[tuple[int, str]], rng: random.Random) -> dict[str, int]:
    """Return for each consumed event how long it waited for its run."""
    waiting: list[tuple[int, str]] = []
    row_ms: int | None = None
    pass_ms = 0
    waits: dict[str, int] = {}
    for at_ms, instant in [*events, (1 << 60, "")]:
        if row_ms is not None and pass_ms <= at_ms:
            for time_ms, name in waiting:
                if time_ms <= row_ms:
                    waits.setdefault(name, pass_ms - time_ms)
            waiting = [event for event in waiting if event[0] > row_ms]
            row_ms = None
        if not instant:
            break
        waiting.append((at_ms, instant))
        if row_ms is None:
            row_ms, pass_ms = at_ms, at_ms + rng.randrange(500, 6_000)
    return waits
