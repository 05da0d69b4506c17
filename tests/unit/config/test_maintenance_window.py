from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta

import pytest

from airflow_lake_provider.config.service_policies import MaintenanceWindow
from airflow_lake_provider.config.tables_file import parse_tables_file, parse_window
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.manager.scheduling.scheduling import StartVerdict, wait_for_window
from airflow_lake_provider.planner.rules import Decision, Verdict

NIGHTS = MaintenanceWindow(days=("fri", "sat"), begin=time(22), end=time(6), time_zone="Europe/Berlin")


def berlin(text: str, hours: int = 1) -> datetime:
    """Return a wall clock's time in Berlin, that many hours ahead of UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC) - timedelta(hours=hours)


@pytest.mark.parametrize(
    ("now", "is_open"),
    [
        ("2026-11-20 21:59", False),  # a Friday
        ("2026-11-20 22:00", True),
        ("2026-11-21 05:59", True),
        ("2026-11-21 06:00", False),
        ("2026-11-21 23:00", True),
        ("2026-11-22 05:59", True),  # opened on Saturday
        ("2026-11-22 22:30", False),
    ],
)
def test_window_over_midnight_belongs_to_the_day_on_which_it_opens(now: str, is_open: bool) -> None:
    assert NIGHTS.is_open(berlin(now)) is is_open


def test_next_opening_is_the_next_one_in_the_windows_own_zone() -> None:
    assert NIGHTS.next_opening(berlin("2026-11-18 12:00")) == berlin("2026-11-20 22:00")
    assert NIGHTS.next_opening(berlin("2026-11-20 22:00")) == berlin("2026-11-21 22:00")
    summer = MaintenanceWindow(days=("sun",), begin=time(2, 30), end=time(5), time_zone="Europe/Berlin")
    assert summer.is_open(berlin("2026-03-29 04:00", hours=2))  # 02:30 did not exist that night
    assert MaintenanceWindow().is_open(berlin("2026-11-18 12:00"))


def test_new_plans_wait_for_the_window_and_pending_ones_do_not() -> None:
    now_ms = int(berlin("2026-11-18 12:00").timestamp() * 1000)
    new = Decision(Service.CLUSTERING, Verdict.DUE, "due", key_instant="1")
    waiting = wait_for_window(new, NIGHTS, now_ms)
    assert waiting is not None
    assert waiting.verdict is StartVerdict.WAITING
    assert waiting.evaluate_again_ms == int(berlin("2026-11-20 22:00").timestamp() * 1000)
    assert "fri, sat 22:00 to 06:00 Europe/Berlin" in waiting.reason
    pending = Decision(Service.CLUSTERING, Verdict.DUE, "due", Mode.EXECUTE, "1", ("1",))
    assert wait_for_window(pending, NIGHTS, now_ms) is None
    assert wait_for_window(new, None, now_ms) is None


def test_tables_of_one_window_begin_within_its_first_minutes_each_at_its_own_moment() -> None:
    new = Decision(Service.COMPACTION, Verdict.DUE, "due", key_instant="1")
    opens_ms = int(berlin("2026-11-20 22:00").timestamp() * 1000)
    begins: dict[str, int] = {}
    for number in range(2000):
        table_id = f"t{number}-0123456789abcdef"
        before = wait_for_window(new, NIGHTS, opens_ms - 3_600_000, table_id)
        assert before is not None
        begins[table_id] = before.evaluate_again_ms or 0
        assert opens_ms <= begins[table_id] < opens_ms + 300_000
        assert wait_for_window(new, NIGHTS, begins[table_id], table_id) is None
        clean = replace(new, service=Service.CLEAN)
        assert wait_for_window(clean, NIGHTS, begins[table_id], table_id) is None, "a table's services begin together"
        if begins[table_id] > opens_ms:
            waiting = wait_for_window(new, NIGHTS, begins[table_id] - 1, table_id)
            assert waiting is not None
            assert waiting.evaluate_again_ms == begins[table_id]
    most = max(sum(1 for ms in begins.values() if second <= ms < second + 1000) for second in begins.values())
    assert most < 30, "of 2,000"


@pytest.mark.parametrize("now", ["2026-11-18 00:00", "2026-11-18 00:01", "2026-11-18 12:00"])
def test_window_that_never_closes_is_no_clock_time(now: str) -> None:
    new = Decision(Service.COMPACTION, Verdict.DUE, "due", key_instant="1")
    for number in range(50):
        assert wait_for_window(new, MaintenanceWindow(), int(utc_ms(now)), f"t{number}") is None


def test_short_window_is_not_missed() -> None:
    short = MaintenanceWindow(begin=time(1), end=time(1, 10))
    new = Decision(Service.COMPACTION, Verdict.DUE, "due", key_instant="1")
    for number in range(50):
        assert wait_for_window(new, short, utc_ms("2026-11-18 01:01"), f"t{number}") is None


def utc_ms(text: str) -> int:
    return int(datetime.fromisoformat(f"{text}+00:00").timestamp() * 1000)


def test_window_in_the_tables_file() -> None:
    text = """
defaults:
  maintenance_window: {days: [fri, sat], begin: "22:00", end: "06:00", time_zone: Europe/Berlin}
tables:
  - name: free
    maintenance_window: null
"""
    tables = parse_tables_file(text, "t.yaml")
    assert tables.defaults.maintenance_window == NIGHTS
    assert tables.policy_for("/x", "free").maintenance_window is None


@pytest.mark.parametrize(
    "text",
    [
        '{"days": ["fri", "sat"], "begin": "22:00", "end": "06:00", "time_zone": "Europe/Berlin"}',
        "{days: [fri, sat], begin: '22:00', end: '06:00', time_zone: Europe/Berlin}",
    ],
    ids=["json", "yaml"],
)
def test_window_of_one_run_is_written_as_in_the_tables_file(text: str) -> None:
    window = parse_window(text, "window")
    assert window == NIGHTS
    assert window.find_wait_end(berlin("2026-11-18 12:00")) == berlin("2026-11-20 22:00")
    assert window.find_wait_end(berlin("2026-11-20 23:00")) is None


@pytest.mark.parametrize("text", ["", "{}", "null"])
def test_window_of_which_nothing_is_said_is_always_open(text: str) -> None:
    assert parse_window(text, "window") == MaintenanceWindow()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"time_zone": "Mars/Base"}', "window: time_zone is 'Mars/Base', allowed: a name"),
        ('{"begin": "25:00"}', "window: begin is '25:00'"),
        ("5", "window must be a mapping"),
        ("{", "window: not YAML"),
    ],
)
def test_wrong_window_of_one_run_says_what_is_allowed(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_window(text, "window")
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("window", "says"),
    [
        ("{days: [friday]}", "days must be a list of mon, tue"),
        ("{days: fri}", "days must be a list"),
        ('{begin: "25:00"}', "begin is '25:00', allowed: a time such as 22:30"),
        ("{time_zone: Mars/Base}", "time_zone is 'Mars/Base', allowed: a name such as Europe/Berlin"),
        ("{until: 3}", "unknown setting 'until' in maintenance_window"),
        ("5", "maintenance_window must be a mapping"),
    ],
)
def test_wrong_window_names_what_is_allowed(window: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"t\.yaml:2") as raised:
        parse_tables_file(f"defaults:\n  maintenance_window: {window}\n", "t.yaml")
    assert says in str(raised.value)
