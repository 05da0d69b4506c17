"""How far cleaning and archiving may go: the oldest hold of a table's sinks, each of them for its time to live; pure.

The words are TiCDC's. A hold counts from the moment the sink is configured, whether or not it ever ran, failed, or is
paused; what renews it is progress, or being up to date. Past its time to live it is released and the sink is marked
"needs snapshot" in the same transaction, so that the sink can never go on as if nothing had happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

EVERYTHING = "0"
"""The hold of a sink that has nothing yet: smaller than any instant time."""


@dataclass(frozen=True, slots=True)
class SinkHold:
    """What one sink of a table still needs."""

    sink: str
    hold: str
    """Requested time from which on files and instants are needed."""
    renewed_ms: int
    ttl_s: float
    needs_snapshot: bool = False
    """It was released: nothing is held for it until its new snapshot begins."""

    def ends_ms(self) -> int:
        """Return when the hold is released unless it is renewed."""
        return self.renewed_ms + int(self.ttl_s * 1000)


@dataclass(frozen=True, slots=True)
class Safepoint:
    """What cleaning and archiving must not pass. `instant` is None when nothing is held."""

    instant: str | None = None
    holder: str = ""
    """The sink with the oldest hold."""
    released: tuple[str, ...] = ()
    """Sinks whose time to live is over now; they must be marked before anybody acts on this safepoint."""


def find_safepoint(holds: Iterable[SinkHold], now_ms: int) -> Safepoint:
    """Return the oldest hold that counts, and the sinks that are to be released."""
    counting, released = [], []
    for hold in holds:
        if hold.needs_snapshot:
            continue
        if hold.ends_ms() <= now_ms:
            released.append(hold.sink)
        else:
            counting.append(hold)
    oldest = min(counting, key=lambda hold: (hold.hold, hold.sink), default=None)
    if oldest is None:
        return Safepoint(released=tuple(released))
    return Safepoint(oldest.hold, oldest.sink, tuple(released))
