"""Which notifier gets which event: by the table's owner, the event's kind and its severity.

A route is named in `[lake] notifiers` in place of its notifier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.notifications.event import EventKind, LakeEvent, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk import BaseNotifier

NO_OWNER = "none"


@dataclass(frozen=True)
class Route:
    """Sends a notifier only the events that it wants; of the daily digest, the lines of its owners.

    :param notifier: an instance of a notifier, or a function of the event.
    :param owners: owners of tables, with `*`; `none` is that of tables without an owner. Empty: all.
    :param kinds: kinds of events; empty: all but the digest.
    :param min_severity: `info`, `warning` or `critical`. What has ended is as severe as it was.
    """

    notifier: BaseNotifier | Callable[[LakeEvent], Any]
    owners: Sequence[str] = ()
    kinds: Sequence[str] = ()
    min_severity: str = Severity.INFO.value

    def __post_init__(self) -> None:
        """Raise ConfigError for a kind, or a severity, that there is not."""
        for name, given, known in (
            ("kinds", self.kinds, EventKind),
            ("min_severity", (self.min_severity,), Severity),
        ):
            unknown = [one for one in given if one not in set(known)]
            if isinstance(given, str) or unknown:
                raise ConfigError(f"Route: {name} = {unknown or given!r}: give some of {', '.join(known)}")
        if isinstance(self.owners, str):
            raise ConfigError(f"Route: owners = {self.owners!r}: give a list")

    def select(self, event: LakeEvent) -> LakeEvent | None:
        """Return what the notifier gets of an event; None for nothing."""
        if event.kind is EventKind.DIGEST:
            lines = tuple(line for line in event.lines if self._is_owned(line.owner))
            return replace(event, lines=lines) if EventKind.DIGEST in self.kinds else None
        wanted = event.kind in self.kinds if self.kinds else True
        is_severe = list(Severity).index(event.severity) >= list(Severity).index(Severity(self.min_severity))
        return event if wanted and is_severe and self._is_owned(event.table_owner) else None

    def _is_owned(self, owner: str) -> bool:
        return not self.owners or any(fnmatchcase(owner or NO_OWNER, pattern) for pattern in self.owners)
