"""One day next to the day before, and a week: by every run that ended, counted one by one, however it was recorded."""

from __future__ import annotations

import random

import pytest
from fastapi.testclient import TestClient

from airflow_lake_provider.cli.lake_reports import _span_lines
from airflow_lake_provider.config.access import Audience
from airflow_lake_provider.instant_clock import DAY_MS, HOUR_MS
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.backlog_history import (
    PERIOD_MS,
    WEEK_MS,
    BacklogMoment,
    Compared,
    Ended,
    compare_spans,
    load_compared,
    record_backlog,
)
from airflow_lake_provider.manager.db.bill import BillKey, add_to_bill, day_of
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.read_model import OverviewReport
from airflow_lake_provider.shared.typed_json import read_known
from airflow_lake_provider.ui.answers import PageMemory, Viewer
from airflow_lake_provider.ui.app import create_pages
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeClock, FakeInstanceGateway, serve


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("begins_ms", [0, 9 * HOUR_MS, DAY_MS - PERIOD_MS])
@pytest.mark.parametrize("span_ms", [DAY_MS, WEEK_MS])
def test_two_spans_are_what_ended_in_them(seed: int, begins_ms: int, span_ms: int) -> None:
    draw = random.Random(seed)
    now_ms = 400 * DAY_MS + begins_ms + draw.randrange(PERIOD_MS)
    ends_ms = sorted(now_ms - draw.randrange(4 * span_ms) for _ in range(500))
    # A sweep comes somewhere within a quarter, and misses some of them.
    swept_ms = sorted(
        now_ms - number * PERIOD_MS - draw.randrange(60_000) for number in range(4 * span_ms // PERIOD_MS)
    )
    swept_ms = [at_ms for at_ms in swept_ms if draw.random() < 0.9] or [now_ms]
    moments = {}
    for at_ms in swept_ms:
        today = sum(day_of(at_ms) <= end_ms <= at_ms for end_ms in ends_ms)
        time_ms = at_ms - at_ms % PERIOD_MS
        moments.setdefault(time_ms, (at_ms, BacklogMoment(time_ms, at_ms, 5, 0, today, 2 * today, 1000 * today, today)))
    days: dict[int, Ended] = {}
    for end_ms in ends_ms:
        was = days.get(day_of(end_ms), Ended())
        days[day_of(end_ms)] = Ended(was.runs + 1, was.failed_tries + 2, was.core_ms + 1000, was.bytes_out + 1)
    last, before = compare_spans([moment for _, moment in moments.values()], days, span_ms)
    real_ms = {moment.log_bytes: at_ms for at_ms, moment in moments.values()}
    until_ms = real_ms[last.log_bytes]
    middle_ms = real_ms[before.log_bytes]
    assert abs(until_ms - middle_ms - span_ms) <= 2 * PERIOD_MS + PERIOD_MS
    assert last.runs == sum(middle_ms < end_ms <= until_ms for end_ms in ends_ms)
    wanted_ms = before.until_ms - span_ms
    first_ms = moments[min(moments, key=lambda time_ms: abs(time_ms - wanted_ms))][0]
    assert before.runs == sum(first_ms < end_ms <= middle_ms for end_ms in ends_ms)
    assert (last.failed_tries, last.core_s, last.rewritten_bytes) == (2 * last.runs, last.runs, last.runs)


def test_nothing_is_compared_before_it_was_recorded() -> None:
    assert compare_spans([], {}, DAY_MS) == ()
    moments = [BacklogMoment(number * PERIOD_MS, 0, 0, 0) for number in range(97)]
    assert compare_spans(moments[-50:], {}, DAY_MS) == ()
    assert len(compare_spans(moments, {}, DAY_MS)) == 1
    assert compare_spans(moments, {}, WEEK_MS) == ()


def test_command_and_page_show_the_two_days_and_hide_them_from_who_sees_only_some_tables(
    services: ManagerServices, registry: Registry, clock: FakeClock
) -> None:
    for number in range(2 * 96 + 1):
        now_ms = registry.now_ms()
        with registry.transaction() as session:
            key = BillKey("t", "clean", day_of(now_ms))
            more = {"runs": 1, "failed_tries": int(number > 96), "core_ms": 3_600_000, "bytes_out": 1 << 20}
            add_to_bill(session, key, "", more)
        record_backlog(registry, now_ms)
        clock.advance(900)
    found = load_compared(registry, registry.now_ms())
    last, before = found.days
    assert found.weeks == ()
    assert (last.runs, last.failed_tries, last.core_s, last.rewritten_bytes) == (96, 96, 96 * 3600.0, 96 << 20)
    assert (before.runs, before.failed_tries) == (96, 0)
    object.__setattr__(services, "instance_gateway", FakeInstanceGateway())
    pages = TestClient(create_pages(lambda: services, lambda: Viewer("ada")))
    assert [day["runs"] for day in pages.get("/api/overview").json()["days"]] == [96, 96]
    limited = Audience(hidden=("/lake/secret",))
    assert PageMemory(registry.now_ms).compared(limited, lambda: found) == Compared()
    manager = TestClient(serve(lambda: services), headers={"Authorization": f"Bearer {SERVICE_TOKEN}"})
    days = read_known(OverviewReport, manager.get("/reports/overview").json()).days
    lines = {line["all tables"]: (line["last 24 h"], line["24 h before"]) for line in _span_lines(days, ())}
    assert lines["failed tries"] == ("96", "0")
    assert lines["core hours"] == ("96.00", "96.00")
    assert _span_lines(days[:1], days[:1]) == []
    assert set(_span_lines((), days)[0]) == {"", "all tables", "last 7 d", "7 d before"}
