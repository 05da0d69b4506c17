"""Instants of another zone's clock are found by the times of their files, and a copied table proves nothing."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.hudi.properties import JobZone
from airflow_lake_provider.instant_clock import (
    DAY_MS,
    Foreign,
    Overtaken,
    Stamp,
    describe_foreign,
    find_foreign,
    find_overtaken,
    format_instant_time,
    instant_age_s,
    shift_instant_time,
    stamps_of,
)

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
IN_UTC = JobZone("UTC", UTC)
NEW_YORK = ZoneInfo("America/New_York")


class Files:
    """The files of a timeline as writers in different zones leave them; `lag_s` is how much later a file is made."""

    def __init__(self, *, layout: int = 2, lag_s: float = 0.2) -> None:
        self.layout, self.lag_s = layout, lag_s
        self.made: dict[str, int] = {}

    def write(self, moment: datetime, zone: str, action: str = "deltacommit", took_s: float = 4) -> str:
        ended = moment + timedelta(seconds=took_s)
        requested, completed = (_named(at, zone) for at in (moment, ended))
        plan = {"commit": "compaction"}.get(action, action)
        completed_name = f"{requested}_{completed}.{action}" if self.layout == 2 else f"{requested}.{action}"
        self.made[f"{requested}.{plan}.requested"] = _ms(moment) + int(self.lag_s * 1000)
        self.made[f"{requested}.{plan}.inflight"] = _ms(moment) + 1000
        self.made[completed_name] = _ms(ended) + int(self.lag_s * 1000)
        return requested

    def writes(self, first: datetime, zone: str, count: int, every_s: float = 30, action: str = "deltacommit") -> str:
        return [self.write(first + timedelta(seconds=every_s * n), zone, action) for n in range(count)][-1]

    def copied(self, moment: datetime, each_ms: int = 3) -> None:
        for number, name in enumerate(sorted(self.made)):
            self.made[name] = _ms(moment) + number * each_ms

    @property
    def stamps(self) -> tuple[Stamp, ...]:
        return stamps_of(self.made.items())

    def found(self, jobs: JobZone = IN_UTC, now: datetime | None = None) -> Foreign | None:
        now_ms = max(self.made.values()) + 1000 if now is None else _ms(now)
        return find_foreign(self.stamps, jobs.offset_ms, now_ms)


def _named(moment: datetime, zone: str) -> str:
    local = moment.astimezone(ZoneInfo(zone))
    return f"{local:%Y%m%d%H%M%S}{local.microsecond // 1000:03d}"


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


@pytest.mark.parametrize("layout", [1, 2])
@pytest.mark.parametrize(
    ("zone", "hours"),
    [("America/New_York", -5), ("Asia/Kathmandu", 5.75), ("Pacific/Kiritimati", 14), ("Pacific/Pago_Pago", -11)],
)
def test_a_writer_in_another_zone_is_found_in_both_layouts(layout: int, zone: str, hours: float) -> None:
    files = Files(layout=layout)
    newest = files.writes(NOON, zone, 5)
    found = files.found()
    assert found is not None
    assert found.instants[-1] == newest
    assert found.is_future is (hours > 0)
    assert found.ahead_ms == pytest.approx(hours * 3_600_000, abs=10_000)


@pytest.mark.parametrize("layout", [1, 2])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kathmandu"])
def test_writers_in_the_jobs_own_zone_are_fine(layout: int, zone: str) -> None:
    files = Files(layout=layout, lag_s=3)
    files.writes(NOON, zone, 12)
    assert files.found(JobZone(zone, ZoneInfo(zone))) is None


def test_the_hour_that_autumn_repeats_and_the_one_that_spring_leaves_out_are_fine() -> None:
    for change in (datetime(2026, 11, 1, 6, tzinfo=UTC), datetime(2026, 3, 8, 7, tzinfo=UTC)):
        files = Files()
        files.writes(change - timedelta(hours=1), "America/New_York", 40, every_s=180)
        assert files.found(JobZone("New York", NEW_YORK)) is None


def test_one_write_is_proof_where_its_name_has_a_completed_time() -> None:
    files = Files()
    files.write(NOON, "America/New_York", took_s=8)
    assert files.found() is not None


def test_an_instant_ahead_of_now_is_proof_without_its_files_time() -> None:
    files = Files()
    files.writes(NOON, "UTC", 3)
    files.copied(NOON - timedelta(hours=3))
    assert files.found(now=NOON - timedelta(minutes=3)) is None
    found = files.found(now=NOON - timedelta(minutes=20))
    assert found is not None
    assert found.is_future


@pytest.mark.parametrize("later_h", [0, 0.25, 1, 5, 5.01, 24, 24 * 365])
@pytest.mark.parametrize("every_s", [5, 30, 900, 3600])
def test_a_copied_table_proves_nothing(later_h: float, every_s: float) -> None:
    files = Files()
    files.writes(NOON, "UTC", 12, every_s=every_s)
    files.copied(NOON + timedelta(seconds=12 * every_s) + timedelta(hours=later_h))
    assert files.found() is None


def test_a_copied_table_that_is_written_on_is_judged_by_what_was_written() -> None:
    files = Files()
    files.writes(NOON, "UTC", 12)
    files.copied(NOON + timedelta(hours=5))
    files.writes(NOON + timedelta(hours=6), "UTC", 3)
    assert files.found() is None
    files.writes(NOON + timedelta(hours=7), "America/New_York", 2)
    assert files.found() is not None


def test_one_of_several_writers_in_another_zone_is_enough() -> None:
    files = Files()
    files.writes(NOON, "UTC", 12)
    files.write(NOON + timedelta(seconds=345), "America/New_York")
    files.writes(NOON + timedelta(hours=1), "UTC", 8)
    assert files.found() is not None


def test_it_ends_once_ten_instants_were_made_in_the_jobs_zone_or_three_on_a_later_day() -> None:
    often = Files()
    often.writes(NOON, "America/New_York", 5)
    often.writes(NOON + timedelta(hours=1), "UTC", 9)
    assert often.found() is not None
    often.write(NOON + timedelta(hours=2), "UTC")
    assert often.found() is None
    seldom = Files()
    seldom.writes(NOON, "America/New_York", 5)
    for day in (2, 4, 6):
        assert seldom.found() is not None
        seldom.write(NOON + timedelta(days=day), "UTC")
    assert seldom.found() is None


@pytest.mark.parametrize("layout", [1, 2])
@pytest.mark.parametrize("action", ["commit", "clean", "clustering", "replacecommit"])
def test_planning_that_takes_a_quarter_of_an_hour_is_not_taken_for_a_zone(layout: int, action: str) -> None:
    files = Files(layout=layout)
    files.writes(NOON, "UTC", 6, every_s=3600)
    for hour in range(6):
        request = f"{_named(NOON + timedelta(hours=hour, minutes=7), 'UTC')}.{action}.requested"
        request = request.replace(".commit.", ".compaction.")
        files.made[request] = _ms(NOON + timedelta(hours=hour, minutes=22, seconds=hour * 5))
    assert files.found() is None
    assert find_overtaken(files.stamps, IN_UTC.offset_ms) is None


def test_clocks_that_differ_by_minutes_and_names_that_are_no_times_are_not_taken_for_zones() -> None:
    files = Files(lag_s=7 * 60)
    files.writes(NOON, "UTC", 12)
    assert files.found() is None
    strange = {"00000000000001.commit.requested": _ms(NOON), "99999999999999.commit.requested": _ms(NOON), "x": 1}
    assert find_foreign(stamps_of(strange.items()), IN_UTC.offset_ms, _ms(NOON)) is None
    assert find_foreign(stamps_of({"20261121120000000.commit.requested": 0}.items()), IN_UTC.offset_ms, 1) is None


@pytest.mark.parametrize("layout", [1, 2])
def test_writes_that_sort_before_a_commit_made_earlier_are_named(layout: int) -> None:
    files = Files(layout=layout)
    files.writes(NOON, "America/New_York", 5)
    compaction = files.write(NOON + timedelta(minutes=10), "UTC", "commit")
    assert find_overtaken(files.stamps, IN_UTC.offset_ms) is None
    first = files.write(NOON + timedelta(minutes=11), "America/New_York")
    second = files.write(NOON + timedelta(minutes=12), "America/New_York")
    assert find_overtaken(files.stamps, IN_UTC.offset_ms) == Overtaken(compaction, "compaction", (first, second))
    # It is so from whichever zone.
    assert find_overtaken(files.stamps, JobZone("", NEW_YORK).offset_ms) is not None


def test_files_copied_in_any_order_are_not_taken_for_writes_that_sort_wrongly() -> None:
    files = Files()
    files.writes(NOON, "UTC", 6, every_s=900)
    files.writes(NOON + timedelta(hours=2), "UTC", 3, action="commit")
    for number, name in enumerate(sorted(files.made, reverse=True)):
        files.made[name] = _ms(NOON + timedelta(hours=9)) + number
    assert find_overtaken(files.stamps, IN_UTC.offset_ms) is None


def test_the_words_name_instants_zones_setting_and_what_to_do() -> None:
    files = Files()
    newest = files.writes(NOON, "America/New_York", 5)
    found = files.found()
    assert found is not None
    text = describe_foreign(found, "Etc/UTC", "LOCAL")
    assert f"{newest} (and 2 before) was named 5:00 h behind the clock of the jobs (Etc/UTC)" in text
    assert "hoodie.table.timeline.timezone=LOCAL" in text
    assert "spark.driver.extraJavaOptions: -Duser.timezone=<zone>" in text
    assert "ignores hoodie.table.timeline.timezone=UTC" in describe_foreign(found, "UTC", "UTC")


@given(time_ms=st.integers(1_500_000_000_000, 1_900_000_000_000), by_ms=st.integers(-DAY_MS * 400, DAY_MS * 400))
def test_shifted_instant_time_lies_as_far_away_as_asked(time_ms: int, by_ms: int) -> None:
    """Python's own calendar judges."""
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)
    expected = (moment + timedelta(milliseconds=by_ms)).isoformat(timespec="milliseconds")
    shifted = shift_instant_time(format_instant_time(time_ms, UTC), by_ms)
    assert shifted == re.sub(r"\D", "", expected.removesuffix("+00:00"))


@pytest.mark.parametrize(("instant", "by_ms"), [("", 1), ("no time", 1), ("20260101000000", -(10**15))])
def test_what_is_no_time_is_shifted_to_none(instant: str, by_ms: int) -> None:
    assert shift_instant_time(instant, by_ms) == ""


def test_age_is_never_negative_and_knows_the_zone() -> None:
    now_s = datetime(2026, 1, 1, 0, 1, tzinfo=UTC).timestamp()
    assert instant_age_s("20260101000000500", UTC, now_s) == 59.5
    assert instant_age_s("20260101000200000", UTC, now_s) == 0
    assert instant_age_s("", UTC, now_s) == 0
