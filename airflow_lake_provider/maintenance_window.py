"""When the services of a table may begin: days and hours in a time zone. Pure; the clock is passed in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from airflow_lake_provider.scalar_kinds import Clock, TimeZone
from airflow_lake_provider.setting_kinds import Names, setting

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """Opens at `begin` (inclusive) on each of `days`, closes at `end` (exclusive); over midnight when end <= begin.

    Hours are the wall clock's in `time_zone`. An opening hour that a change to summer time skips is the same moment as
    the hour after it.
    """

    days: tuple[str, ...] = setting(Names(DAYS, may_be_empty=False), DAYS)
    begin: time = setting(Clock(), time(0))
    end: time = setting(Clock(), time(0))
    time_zone: str = setting(TimeZone(), "UTC")

    def is_open(self, now: datetime) -> bool:
        """Whether a service may begin now."""
        return any(opens <= now < closes for opens, closes in self._around(now))

    def next_opening(self, now: datetime) -> datetime:
        """Return when it opens next, later than now."""
        return min(opens for opens, _ in self._around(now, days_ahead=8) if opens > now)

    def find_wait_end(self, now: datetime) -> datetime | None:
        """Return when it opens next; None while it is open."""
        return None if self.is_open(now) else self.next_opening(now)

    def __str__(self) -> str:
        """Return it as people write it."""
        days = "each day" if set(self.days) == set(DAYS) else ", ".join(self.days)
        return f"{days} {self.begin:%H:%M} to {self.end:%H:%M} {self.time_zone}"

    def _around(self, now: datetime, days_ahead: int = 1) -> list[tuple[datetime, datetime]]:
        zone = ZoneInfo(self.time_zone)
        today = now.astimezone(zone).date()
        dates = [today + timedelta(days=offset) for offset in range(-1, days_ahead + 1)]
        return [self._on(day, zone) for day in dates if DAYS[day.weekday()] in self.days]

    def _on(self, day: date, zone: ZoneInfo) -> tuple[datetime, datetime]:
        last_day = day if self.end > self.begin else day + timedelta(days=1)
        opens = datetime.combine(day, self.begin, zone).astimezone(UTC)
        closes = datetime.combine(last_day, self.end, zone).astimezone(UTC)
        return opens, closes
