"""The Lake's pages in Chromium: both themes, axe, keyboard, a phone, 10,000 tables, a service that ends meanwhile.

The page has the globals of Airflow's page; `tests/system/test_lake_pages.py` opens the same pages in Airflow itself.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import delete, insert, update

from airflow_lake_provider.config.access import TokensSource
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.manager.db.operations import NO_RUNS, OBSERVED, Quote, load_newest_runs
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.db.run_phases import Try, phases_of
from airflow_lake_provider.manager.db.schema import lake_search, lake_table, lake_waiting
from airflow_lake_provider.manager.db.search import Sort, TableSearch, page_of_tables
from airflow_lake_provider.manager.health.health import TableState
from airflow_lake_provider.manager.scheduling.budgets import list_waiting
from airflow_lake_provider.planner.price import Work
from local_stack.processes import PATIENCE
from tests.support.browser import needs_chromium, needs_frontend, open_browser, open_page
from tests.support.lake_pages import WORDS, ServedPages, serve, take_screens

pytestmark = [pytest.mark.integration, needs_chromium, needs_frontend]

TABLES = 10_000


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPages]:
    with serve(tmp_path_factory.mktemp("lake"), TABLES) as pages:
        yield pages


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


def paths(pages: ServedPages) -> dict[str, tuple[str, str]]:
    """Return each page's path, and a text that it shows when it is complete."""
    return {
        "lake": ("/plugin/lake", "10,000 tables"),
        "table": (f"/plugin/lake/tables/{pages.table_id}", "instants in sight"),
        "operations": ("/plugin/lake/operations", "Older runs"),
        "backlog": ("/plugin/lake/backlog", "Would be enough"),
        "bill": ("/plugin/lake/bill", "the 1,000 most expensive lines"),
    }


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["lake", "table", "operations", "backlog", "bill"])
def test_page_has_no_complaint_and_no_violation(pages: ServedPages, browser: Any, name: str, theme: str) -> None:
    path, shown = paths(pages)[name]
    with open_page(browser) as opened:
        opened.page.goto(f"{pages.url}{path}?theme={theme}")
        opened.page.get_by_text(shown).first.wait_for()
        assert opened.violations() == []
        for tab in opened.page.get_by_role("tab").all():
            tab.click()
            assert opened.violations() == [], tab.inner_text()
        assert opened.complaints == []


@pytest.mark.parametrize("name", ["lake", "table", "operations", "backlog", "bill"])
def test_page_fits_a_phone(pages: ServedPages, browser: Any, name: str) -> None:
    path, shown = paths(pages)[name]
    with open_page(browser, width=390, height=844) as opened:
        opened.page.goto(f"{pages.url}{path}")
        opened.page.get_by_text(shown).first.wait_for()
        wide = opened.page.evaluate("document.querySelector('.lake').scrollWidth - innerWidth")
        assert wide <= 0
        assert opened.violations() == []


def test_names_of_tables_are_read_on_a_phone_next_to_airflows_menu(pages: ServedPages, browser: Any) -> None:
    with open_page(browser, width=326, height=844) as opened:
        opened.page.goto(f"{pages.url}/plugin/lake")
        opened.page.get_by_text("10,000 tables").first.wait_for()
        widths = opened.page.evaluate(
            "[...document.querySelectorAll('.lake .row .c-name a')].map(a => a.getBoundingClientRect().width)"
            ".concat([...document.querySelectorAll('.lake .row .c-name')].map(c => c.clientWidth / 2))"
        )
        assert min(widths) > 50, widths


@pytest.mark.parametrize("width", [1000, 1376])
def test_no_number_of_a_row_is_cut(pages: ServedPages, browser: Any, width: int) -> None:
    with open_page(browser, width=width, height=900) as opened:
        opened.page.goto(f"{pages.url}/plugin/lake")
        opened.page.get_by_text("10,000 tables").first.wait_for()
        cut = opened.page.evaluate(
            "[...document.querySelectorAll('.c-meter small, .c-size small, .c-files small')]"
            ".filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)"
        )
        assert cut == []
        assert opened.page.get_by_role("link", name="its API").get_attribute("href") == f"{pages.url}/v1/hoodie/docs"


WATCH_FRAMES = """() => {
    const seen = {frames: 0, mostRows: 0, stalls: []};
    let before = performance.now();
    const measure = (now) => {
        seen.frames += 1;
        seen.mostRows = Math.max(seen.mostRows, document.querySelectorAll('[data-index]').length);
        if (now - before > 1000) seen.stalls.push(Math.round(now - before));
        before = now;
        requestAnimationFrame(measure);
    };
    requestAnimationFrame(measure);
    window.seenFrames = seen;
}"""
"""Counts frames, the most rows that one of them had in the document, and pauses of more than a second between two."""
MAX_STALLS = 10
"""A busy machine takes a second from the browser now and then. A list whose every row is in the document stalls with
each of its last fifty pages."""


def test_ten_thousand_tables_scroll_to_the_last_without_stalls_and_with_few_rows_in_any_frame(
    pages: ServedPages, browser: Any
) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake?sort=name")
        page.locator("[data-index='0']").wait_for()
        page.evaluate(WATCH_FRAMES)
        deadline = time.monotonic() + 120 * PATIENCE
        while time.monotonic() < deadline:
            if page.locator(f"[data-index='{TABLES - 1}']").count():
                break
            page.evaluate(
                "(() => { const one = document.querySelector('.scroller'); one.scrollTop = one.scrollHeight })()"
            )
            page.wait_for_timeout(20)
        seen = page.evaluate("window.seenFrames")
        assert 10 < seen["mostRows"] < 60
        assert len(seen["stalls"]) <= MAX_STALLS, seen
        assert page.locator(f"[data-index='{TABLES - 1}']").count() == 1
        # Each page of rows came in a frame of its own, at least.
        assert seen["frames"] > TABLES / 100


def test_first_rows_take_one_request_for_a_page_of_rows_and_wait_for_no_other(pages: ServedPages, browser: Any) -> None:
    asked: list[str] = []
    held: list[Any] = []
    with open_page(browser) as opened:
        page = opened.page
        page.on("request", lambda request: asked.append(request.url) if "/lake/api/" in request.url else None)
        # The numbers of all tables are not answered: the list must not need them.
        for other in ("overview", "backlog/history?**", "me"):
            page.route(f"**/lake/api/{other}", lambda route: held.append(route))
        page.goto(f"{pages.url}/plugin/lake")
        page.locator("[data-index='0']").wait_for()
        page.locator("[data-index='9']").wait_for()
        (first,) = [parse_qs(urlsplit(url).query) for url in asked if urlsplit(url).path.endswith("/api/tables")]
        assert (first["limit"], "after" in first) == (["100"], False)
        assert 10 <= page.locator("[data-index]").count() < 60
        assert held
        for route in held:
            route.abort()


def test_search_and_facets_stand_in_the_address_and_survive_a_reload(pages: ServedPages, browser: Any) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake")
        page.get_by_role("button", name="blocked").click()
        page.get_by_placeholder("Search by name, database or path").fill("web")
        page.wait_for_url("**q=web**")
        assert "state=blocked" in page.url
        search = TableSearch("web", (TableState.BLOCKED,))
        total = page_of_tables(pages.services.registry, search).total
        page.get_by_text(f"{total} tables", exact=True).wait_for()
        page.reload()
        page.get_by_text(f"{total} tables", exact=True).wait_for()
        assert page.get_by_role("button", name="blocked").get_attribute("aria-pressed") == "true"
        page.get_by_placeholder("Search by name, database or path").fill("no such table")
        page.get_by_text("No table matches").wait_for()


def test_tiles_lead_to_what_they_count_and_rows_show_a_remedy_whole(pages: ServedPages, browser: Any) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake")
        page.get_by_role("link", name="Need attention").click()
        page.wait_for_url("**state=stuck**")
        states = (TableState.STUCK, TableState.UNREADABLE, TableState.FAILING, TableState.BLOCKED)
        search = TableSearch("", (*states, TableState.MISCONFIGURED))
        found = page_of_tables(pages.services.registry, search)
        page.get_by_text(f"{found.total:,} tables", exact=True).wait_for()
        remedies = page.locator("[data-index] .remedy").all()
        assert remedies
        for one in remedies:
            assert one.evaluate("(text) => text.scrollHeight <= text.clientHeight + 1")
            row = one.locator("xpath=ancestor::*[@data-index]")
            assert row.evaluate("(row) => row.scrollHeight <= row.clientHeight + 1")
        assert opened.violations() == []


def test_search_that_is_typed_while_a_choice_is_drawn_keeps_the_choice(pages: ServedPages, browser: Any) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake")
        page.get_by_role("button", name="blocked").wait_for()
        # As on a busy machine, where drawing takes longer than the search waits for the next letter.
        page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": 6})
        page.evaluate(
            """() => {
                const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
                const input = document.querySelector("input[type=search]");
                set.call(input, "web");
                input.dispatchEvent(new Event("input", {bubbles: true}));
                const until = performance.now() + 400;
                setTimeout(() => {
                    document.querySelector("button.facet.st-blocked").click();
                    while (performance.now() < until) {}
                }, 200);
            }"""
        )
        page.wait_for_url("**q=web**")
        page.wait_for_timeout(1_000)
        assert parse_qs(urlsplit(page.url).query) == {"state": ["blocked"], "q": ["web"]}


def test_first_rows_are_in_sight_and_each_head_orders_both_ways(pages: ServedPages, browser: Any) -> None:
    heads = {"State": Sort.WORST, "Table": Sort.NAME, "Log files": Sort.BACKLOG, "Base files": Sort.SIZE}
    with open_page(browser, height=900) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake")
        page.get_by_role("link", name="Need attention").wait_for()
        page.locator("[data-index='0']").wait_for()
        assert page.locator("[data-index='0']").bounding_box()["y"] < 400
        for head, sort in (heads | {"Last commit": Sort.COMMIT}).items():
            for is_reverse in (False, True):
                if (sort, is_reverse) != (Sort.WORST, False):  # that is the order of a new page
                    page.get_by_role("button", name=head, exact=True).click()
                search = TableSearch(sort=sort, is_reverse=is_reverse, limit=1)
                (first,) = page_of_tables(pages.services.registry, search).rows
                is_down = (sort in {Sort.WORST, Sort.BACKLOG, Sort.SIZE}) is not is_reverse
                order = "descending" if is_down else "ascending"
                # Waited for, because the first row may be the same in both orders.
                page.locator(f"[role='columnheader'][aria-sort='{order}']", has_text=head).wait_for()
                page.locator("[data-index='0'] .c-name a", has_text=first.table.table_name).wait_for()
        assert parse_qs(urlsplit(page.url).query) == {"sort": ["commit"], "reverse": ["true"]}
        assert opened.violations() == []


def test_operations_are_filtered_by_table_service_outcome_and_day(pages: ServedPages, browser: Any) -> None:
    with open_page(browser, timezone_id="America/New_York") as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake/operations")
        page.get_by_text("Older runs").wait_for()
        with page.expect_request("**/operations?**q=orders**"):
            page.get_by_placeholder("Table, database or path").fill("orders")
        page.get_by_label("Service").select_option("orphans")
        page.get_by_text("No run matches").wait_for()
        page.get_by_label("Service").select_option("compaction")
        page.get_by_label("From").fill("2026-03-08")
        with page.expect_request("**/operations?**until_ms**") as asked:
            page.get_by_label("Until").fill("2026-03-08")
        query = parse_qs(urlsplit(asked.value.url).query)
        # The day on which New York's clocks go forward has 23 hours.
        begin_ms = int(datetime(2026, 3, 8, 5, tzinfo=UTC).timestamp() * 1000)
        assert (query["since_ms"], query["until_ms"]) == ([str(begin_ms)], [str(begin_ms + 23 * 3_600_000)])
        page.get_by_text("No run matches").wait_for()
        page.reload()
        page.get_by_text("No run matches").wait_for()
        assert page.get_by_label("From").input_value() == "2026-03-08"
        csv = page.get_by_role("link", name="CSV").get_attribute("href")
        assert {"q", "service", "since_ms", "until_ms"} == set(parse_qs(urlsplit(csv).query))
        assert opened.violations() == []


def test_empty_registry_names_both_commands(tmp_path: Path, browser: Any) -> None:
    with serve(tmp_path, 1) as none, open_page(browser) as opened:
        with none.services.registry.transaction() as session:
            for table in (lake_search, lake_table):
                session.execute(delete(table))
        opened.page.goto(f"{none.url}/plugin/lake")
        opened.page.get_by_text("airflow lake init --table PATH").wait_for()
        opened.page.get_by_text("airflow lake init --discover ROOT").wait_for()
        assert opened.page.locator(".tile").count() == 0
        assert opened.violations() == []


def test_owner_stands_in_the_address_and_each_row_shows_sizes_last_service_and_trend(
    pages: ServedPages, browser: Any
) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake?sort=name")
        page.get_by_label("Owner").select_option("sales")
        page.wait_for_url("**owner=sales**")
        search = TableSearch(owner="sales", sort=Sort.NAME)
        found = page_of_tables(pages.services.registry, search)
        page.get_by_text(f"{found.total:,} tables", exact=True).wait_for()
        page.reload()
        page.get_by_text(f"{found.total:,} tables", exact=True).wait_for()
        assert page.get_by_label("Owner").input_value() == "sales"
        with pages.services.registry.transaction() as session:
            newest = load_newest_runs(session, [row.table.table_id for row in found.rows])
        for number, row in enumerate(found.rows[:8]):
            line, runs = page.locator(f"[data-index='{number}']"), newest.get(row.table.table_id, NO_RUNS)
            trend = line.get_by_role("img", name=f"The last {len(runs.rewritten)} runs that rewrote files")
            assert trend.count() == (1 if len(runs.rewritten) > 1 else 0)
            if trend.count():
                assert trend.locator("path").get_attribute("d").count("z") == len(runs.rewritten)
            done = line.locator(".c-done").inner_text()
            assert ("ago" in done) is (runs.service != "")
            assert ("failed" in done) is (runs.outcome == "failed")
            share = line.locator(".sizes").evaluate(
                "(bar) => bar.firstChild.getBoundingClientRect().width / bar.getBoundingClientRect().width"
            )
            assert abs(share - row.summary.log_bytes / (row.summary.log_bytes + row.summary.base_bytes)) < 0.05


def test_everything_works_from_the_keyboard(pages: ServedPages, browser: Any) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake")
        page.locator("[data-index='2']").wait_for()
        page.locator(".scroller").focus()
        page.keyboard.press("ArrowDown")
        page.wait_for_function("document.activeElement.closest('[data-index=\"1\"]') !== null")
        page.keyboard.press("Enter")
        page.wait_for_url("**/tables/**")
        page.goto(f"{pages.url}/plugin/lake/tables/{pages.table_id}")
        page.locator("svg .mark").first.wait_for()
        timeline = page.get_by_role("application")
        timeline.focus()
        page.keyboard.press("End")
        page.locator(".tip").wait_for()
        assert "inflight" in page.locator(".tip").inner_text()
        before = timeline.get_attribute("aria-label")
        page.keyboard.press("-")
        page.wait_for_function("(text) => document.querySelector('[role=application]').ariaLabel !== text", arg=before)
        page.keyboard.press("Enter")
        page.wait_for_url("**/dags/lake_table_service/runs/**")


def test_timeline_shows_what_an_instant_wrote_and_zooms(pages: ServedPages, browser: Any) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake/tables/{pages.table_id}")
        page.get_by_role("button", name="24 h").click()
        day = page.locator("svg .mark").count()
        page.get_by_role("button", name="1 h", exact=True).click()
        page.wait_for_function("(most) => document.querySelectorAll('svg .mark').length < most", arg=day)
        page.locator("text.hole").wait_for()
        page.get_by_role("button", name="6 h").click()
        view = pages.services.views.refresh(str(pages.folder / "orders"))
        compaction = next(
            one for one in reversed(view.timeline.instants) if one.action == "commit" and one.is_completed
        )
        for mark in reversed(page.locator("svg g.mark").all()):
            mark.hover(force=True)
            tip = page.locator(".tip").inner_text()
            if compaction.requested_time in tip:
                break
        files = len(view.commits[compaction.requested_time].stats)
        assert f"{files} base files" in tip
        assert "Compaction" in tip


def test_blocked_service_points_to_the_instant_that_its_reason_names(pages: ServedPages, browser: Any) -> None:
    registry = pages.services.registry
    row = registry.get(pages.table_id)
    (hole,) = pages.services.views.refresh(str(pages.folder / "orders")).timeline.pending_writes()
    decisions = json.loads(row.decisions)
    clean = next(one for one in decisions if one["service"] == "clean")
    clean |= {"verdict": "blocked", "reason": f"12 writes, but the heartbeat of {hole.requested_time} is 3 h old"}
    with open_page(browser) as opened:
        page = opened.page
        try:
            with registry.transaction() as session:
                mine = lake_table.c.table_id == pages.table_id
                session.execute(update(lake_table).where(mine).values(decisions=json.dumps(decisions)))
            page.goto(f"{pages.url}/plugin/lake/tables/{pages.table_id}")
            page.get_by_role("button", name="24 h").click()
            arrow = page.locator("svg path.blocker")
            arrow.wait_for()
            assert arrow.count() == 1
            assert hole.requested_time in arrow.locator("title").text_content()
            # It begins in the lane of the service, and ends in that of the writes, above it.
            places = {name: _top(page, name) for name in ("Clean", "Commits")}
            ends = arrow.evaluate(
                "(path) => { const box = path.getBoundingClientRect(); return [box.top, box.bottom]; }"
            )
            assert abs(ends[0] - places["Commits"]) < 40
            assert abs(ends[1] - places["Clean"]) < 40
        finally:
            with registry.transaction() as session:
                session.execute(update(lake_table).where(mine).values(decisions=row.decisions))


def _top(page: Any, lane: str) -> float:
    name = page.locator("svg text.lane-name", has_text=lane).first
    return float(name.evaluate("(text) => text.getBoundingClientRect().top"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_tab_on_a_run_shows_where_its_time_went_and_what_it_changed(
    pages: ServedPages, browser: Any, theme: str
) -> None:
    rows = pages.services.instance_gateway.rows  # type: ignore[attr-defined]
    run = next(one for one in rows if one.service == "compaction" and one.state == "success")
    report = replace(run.report, files_in=20, bytes_in=20 * 2**20, files_out=4, bytes_out=12 * 2**20, job_ms=90_000)
    began_ms, ended_ms = run.created_ms + 6_000, run.created_ms + 116_000
    phases = phases_of(run.created_ms, [Try(1, began_ms, ended_ms, "success")], ended_ms)
    reported = replace(run, started_ms=began_ms, ended_ms=ended_ms, tries=1, report=report, phases=phases)
    rows[rows.index(run)] = reported
    try:
        with open_page(browser) as opened:
            page = opened.page
            address = f"/dags/{run.dag_id}/runs/{run.run_id}/plugin/lake_dag_run?theme={theme}"
            page.goto(f"{pages.url}{address}")
            page.get_by_text("In all 1 min 56 s").wait_for()
            phases = page.locator(".phases li").all()
            assert [" ".join(one.inner_text().split()) for one in phases] == [
                "waited for a slot 6 s",
                "Spark job 1 min 30 s",
                "checks before and after it 20 s",
            ]
            cells = [row.inner_text().split() for row in page.locator(".before-after tbody tr").all()]
            assert cells == [
                ["Files", "20", "4"],
                ["Bytes", "20", "MiB", "12", "MiB"],
                ["File", "size", "1", "MiB", "3", "MiB"],
            ]
            assert opened.violations() == []
            assert opened.complaints == []
    finally:
        rows[rows.index(reported)] = run


def test_killed_try_and_the_reason_of_a_failure_are_shown_on_the_run_and_in_operations(
    pages: ServedPages, browser: Any
) -> None:
    rows = pages.services.instance_gateway.rows  # type: ignore[attr-defined]
    run = next(one for one in rows if one.service == "compaction" and one.state == "success")
    at = run.created_ms
    tries = [Try(1, at + 1_000, at + 106_000, "failed"), Try(2, at + 136_000, at + 236_000, "failed")]
    failed = replace(
        run, state="failed", started_ms=at + 1_000, ended_ms=at + 236_000, tries=2,
        phases=phases_of(at, tries, at + 236_000),
        report=replace(run.report, outcome="failed", error="SparkException: Executor memory must be a positive number"),
    )  # fmt: skip
    rows[rows.index(run)] = failed
    try:
        with open_page(browser) as opened:
            page = opened.page
            page.goto(f"{pages.url}/dags/{run.dag_id}/runs/{run.run_id}/plugin/lake_dag_run")
            page.get_by_text("Executor memory must be a positive number").wait_for()
            phases = [" ".join(one.inner_text().split()) for one in page.locator(".phases li").all()]
            assert phases == [
                "waited for a slot 1 s", "try 1 failed 1 min 45 s", "pause before the next try 30 s",
                "try 2 failed 1 min 40 s",
            ]  # fmt: skip
            page.goto(f"{pages.url}/plugin/lake/operations?table_id={run.table_id}&state=failed")
            why = page.locator("td.why", has_text="Executor memory").first
            why.wait_for()
            assert why.inner_text().startswith("failed: SparkException: Executor memory must be a positive number")
            assert "started because" in why.inner_text()
    finally:
        rows[rows.index(failed)] = run


def test_page_follows_a_service_that_ends(pages: ServedPages, browser: Any) -> None:
    registry, runs = pages.services.registry, pages.services.instance_gateway
    assert hasattr(runs, "rows")
    row = registry.get(pages.table_id)
    kept = list(runs.rows)
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake/tables/{pages.table_id}")
        page.get_by_text("Compaction runs").first.wait_for()
        decisions = json.loads(row.decisions)
        decisions[0] |= {"verdict": "not_due", "reason": "0 delta commits (rule: 10)", "run": "", "run_id": ""}
        decisions[0]["evidence"]["delta_commits"] = 0
        try:
            with registry.transaction() as session:
                mine = lake_table.c.table_id == pages.table_id
                session.execute(update(lake_table).where(mine).values(decisions=json.dumps(decisions)))
            runs.rows[:] = [
                replace(run, state="success", ended_ms=int(time.time() * 1000)) if run.state == "running" else run
                for run in kept
            ]
            page.get_by_text("Healthy:").first.wait_for(timeout=15_000)
            page.get_by_text("0 of 10 delta commits").first.wait_for()
            # What has reached its rule and has nothing to do shows why, and no full meter.
            clean = next(one for one in decisions if one["service"] == "clean")
            clean |= {"verdict": "not_due", "reason": "20 writes, nothing to clean yet", "run": "", "run_id": ""}
            clean["evidence"]["writes_since_clean"] = 999
            with registry.transaction() as session:
                session.execute(update(lake_table).where(mine).values(decisions=json.dumps(decisions)))
            page.get_by_text("20 writes, nothing to clean yet").wait_for(timeout=15_000)
            assert page.get_by_text("999 of").count() == 0
            # The list of runs is asked for on its own, up to five seconds later.
            page.locator(".operations").get_by_text("running").wait_for(state="detached")
        finally:
            runs.rows[:] = kept
            with registry.transaction() as session:
                session.execute(update(lake_table).where(mine).values(decisions=row.decisions))


def test_second_question_is_answered_with_not_modified(pages: ServedPages, browser: Any) -> None:
    with open_page(browser) as opened:
        page = opened.page
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        statuses: list[int] = []
        session.on("Network.responseReceivedExtraInfo", lambda sent: statuses.append(sent["statusCode"]))
        page.goto(f"{pages.url}/plugin/lake/operations")
        page.get_by_text("Older runs").wait_for()
        page.reload()
        page.get_by_text("Older runs").wait_for()
    assert 304 in statuses


# --- The bill, and the history of decisions


def test_bill_is_sorted_by_its_heads_and_by_owner_or_service(pages: ServedPages, browser: Any) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake")
        page.get_by_role("link", name="Bill", exact=True).click()
        page.wait_for_function("document.title === 'Bill · Lake'")
        rows = page.get_by_role("region", name="Bill", exact=True).locator("tbody tr")
        rows.first.wait_for()

        def column(number: int) -> list[float]:
            texts = rows.locator(f"td:nth-child({number})").all_inner_texts()
            return [float(text.split("\n")[0].replace(",", "")) for text in texts]

        hours = column(2)
        assert len(hours) == 1000
        assert hours == sorted(hours, reverse=True)
        # The address changes before the page is drawn, and a click between them would turn the old order.
        page.get_by_role("button", name="Failed tries").click()
        page.locator("th[aria-sort='descending']").filter(has_text="Failed tries").wait_for()
        page.wait_for_url("**sort=failed_tries**")
        page.get_by_role("button", name="Core hours").click()
        page.locator("th[aria-sort='descending']").filter(has_text="Core hours").wait_for()
        page.get_by_role("button", name="Core hours").click()
        page.locator("th[aria-sort='ascending']").filter(has_text="Core hours").wait_for()
        page.wait_for_url("**reverse=true**")
        assert column(2) == sorted(hours)
        page.get_by_label("By").select_option("service")
        page.get_by_role("status").filter(has_text="3 lines").wait_for()
        assert {text.split("\n")[0] for text in rows.locator("td:first-child").all_inner_texts()} == {
            "Compaction", "Clustering", "Clean",
        }  # fmt: skip
        with page.expect_download() as download:
            page.get_by_role("link", name="CSV").click()
        assert download.value.suggested_filename == "lake-bill.csv"
        page.get_by_label("By").select_option("table")
        page.get_by_role("combobox", name="Days").select_option("1")
        rows.nth(5).locator("a").wait_for()
        name = rows.nth(5).locator("a").inner_text()
        rows.nth(5).locator("a").click()
        # By its path: tables of one name are different lines of the bill.
        page.wait_for_url(re.compile(rf"/plugin/lake\?q=\S*{re.escape(name)}$"))
        assert opened.complaints == []


def test_history_of_a_table_says_why_it_did_not_run_last_night(pages: ServedPages, browser: Any) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake/tables/{pages.table_id}")
        page.get_by_role("tab", name="history").click()
        rows = page.get_by_role("region", name="History of decisions").locator("tbody tr")
        rows.first.wait_for()
        texts = [[cell.strip() for cell in row.locator("td").all_inner_texts()] for row in rows.all()]
        (waited,) = (row for row in texts if row[4] == "waiting for a budget")
        assert (waited[2], waited[3]) == ("3 h", "Compaction")
        assert waited[5] == waited[0], "due since"
        assert "it needs 1.2, and 0.31 are left (due: 12 delta commits" in waited[6]
        assert [row[4] for row in texts].index("waiting for the maintenance window") < texts.index(waited)
        assert any(row[4] == "running" for row in texts)
        page.get_by_label("Service").last.select_option("clean")
        page.wait_for_url("**of=clean**")
        rows.filter(has_text="Compaction").first.wait_for(state="detached")
        assert {row.locator("td").nth(3).inner_text().strip() for row in rows.all()} == {"Clean"}
        assert opened.violations() == []


# --- The backlog


def test_backlog_shows_rank_price_expected_start_and_budgets(pages: ServedPages, browser: Any) -> None:
    services = pages.services
    waiting = list_waiting(services.registry, services.tables.load())
    assert len(waiting) > 10
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake")
        sentence = page.get_by_role("alert").filter(has_text="core hours a day, or relax the rules")
        sentence.wait_for()
        page.wait_for_function("document.title === 'Lake'")
        page.get_by_role("link", name="Backlog", exact=True).click()
        page.wait_for_url("**/plugin/lake/backlog")
        # The page names itself in an effect, which React runs some time after the address changed.
        page.wait_for_function("document.title === 'Backlog · Lake'")
        sentence.wait_for()
        rows = page.get_by_role("region", name="Due services", exact=True).locator("tbody tr")
        rows.first.wait_for()
        shown = [row.locator("td").all_inner_texts() for row in rows.all()]
        assert [(row[0], row[1]) for row in shown] == [
            (str(one.rank), f"{one.database}.{one.table}") for one in waiting
        ]
        first, found = shown[0], waiting[0]
        assert first[3].startswith(found.urgency)
        assert " to " in first[4]
        assert " to " in first[5]
        assert "of log files merged, 30 files less" in first[6]
        assert "all tables" in first[8]
        assert [row[8].split("\n")[0] for row in shown[:3]] == ["none", "1 service", "2 services"]
        assert found.why in first[10]
        assert found.due_because in first[10]
        budgets = page.get_by_role("region", name="Budgets", exact=True).locator("tbody tr").all_inner_texts()
        assert len(budgets) == 2
        assert "slow" in budgets[0]
        assert "of 120" in budgets[0]
        observed = page.get_by_role("region", name="Due services of observed tables").locator("tbody tr")
        assert observed.count() == len(list_waiting(services.registry, services.tables.load(), OBSERVED))


def test_backlog_is_reached_and_read_with_the_keyboard_alone(pages: ServedPages, browser: Any) -> None:
    with open_page(browser, width=390, height=844) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake")
        page.locator("svg rect.moment").first.wait_for()
        label = page.locator("svg:has(rect.moment)")
        assert "24 hours" in label.get_attribute("aria-label")
        reach(page, "core hours")
        page.keyboard.press("Space")
        page.wait_for_function(
            "document.querySelector('svg:has(rect.moment)').ariaLabel.includes('core hours at most')"
        )
        reach(page, "7 d")
        page.keyboard.press("Enter")
        page.wait_for_function(
            "document.querySelector('svg:has(rect.moment)').ariaLabel.startsWith('Backlog over 7 days')"
        )
        reach(page, "Backlog", "Shift+Tab")
        page.keyboard.press("Enter")
        region = page.get_by_role("region", name="Due services", exact=True)
        region.wait_for()
        # The table is wider than a phone: its own part scrolls, not the page.
        page.keyboard.press("Tab")
        for _ in range(8):
            if page.evaluate("document.activeElement.ariaLabel") == "Due services":
                break
            page.keyboard.press("Tab")
        page.keyboard.press("ArrowRight")
        page.wait_for_function(
            "document.activeElement.ariaLabel === 'Due services' && document.activeElement.scrollLeft"
        )
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url("**/plugin/lake/tables/**")


def reach(page: Any, text: str, key: str = "Tab") -> None:
    """Press a key until the element with this text has the focus."""
    for _ in range(60):
        page.keyboard.press(key)
        if page.evaluate("document.activeElement.innerText") == text:
            return
    raise AssertionError(f"{text} cannot be reached with {key}")


def test_backlog_without_waiting_services_says_so(tmp_path: Path, browser: Any) -> None:
    with serve(tmp_path, 1) as few, open_page(browser) as opened:
        opened.page.goto(f"{few.url}/plugin/lake/backlog")
        opened.page.get_by_text("Nothing waits for a budget.").wait_for()
        opened.page.get_by_text("No observed table has a service that is due.").wait_for()
        assert opened.violations() == []
        assert opened.complaints == []


def test_backlog_of_a_viewer_names_no_table_of_another_team_and_no_figure_of_a_budget(
    pages: ServedPages, browser: Any, tmp_path: Path
) -> None:
    services, before = pages.services, pages.services.tokens
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(
        "tokens:\n- {name: web, roots: ['s3://lake/web'], rights: [read], viewers: [ada], sha256: ['%s']}\n"
        % ("0" * 64)
    )
    object.__setattr__(services, "tokens", TokensSource(path=str(tokens)))
    try:
        with open_page(browser) as opened:
            page = opened.page
            page.goto(f"{pages.url}/plugin/lake/backlog")
            page.get_by_role("region", name="Budgets", exact=True).wait_for()
            assert "web." in page.locator(".lake").inner_text()
            page.context.add_cookies([{"name": "user", "value": "vic", "url": pages.url}])
            page.goto(f"{pages.url}/plugin/lake/backlog")
            page.get_by_text("Budgets count the tables of all teams, so their figures are not shown to you.").wait_for()
            text = page.locator(".lake").inner_text()
            assert "shop." in text
            assert "web." not in text
            assert "more waits for the budget of all tables than it bears" in text
            assert "raise it to" not in text
            page.goto(f"{pages.url}/plugin/lake")
            page.locator("[data-index='0']").wait_for()
            page.wait_for_timeout(500)
            assert page.get_by_role("region", name="What waits, over time").count() == 0
            page.context.clear_cookies()
            page.goto(f"{pages.url}/plugin/lake")
            page.get_by_role("region", name="What waits, over time").wait_for()
    finally:
        object.__setattr__(services, "tokens", before)


# --- Texts of writers


def test_texts_of_writers_are_shown_as_text(pages: ServedPages, browser: Any) -> None:
    hostile = "<img src=x onerror=\"document.title='owned'\">"
    notice = Notice(f"/lake/{hostile}", hostile, Source.COMMIT_CALLBACK, (), hostile, hostile)
    table_id = pages.services.registry.mark_dirty(notice).table_id
    decisions = [
        {"service": hostile, "verdict": "blocked", "reason": hostile, "evidence": {hostile: hostile}},
        {"service": "compaction", "verdict": "due", "run": "waiting", "reason": hostile, "run_reason": hostile},
    ]
    with pages.services.registry.transaction() as session:
        values = {"decisions": json.dumps(decisions), "problem": hostile}
        session.execute(update(lake_table).where(lake_table.c.table_id == table_id).values(**values))
    waits = {
        "scope": "", "table_id": table_id, "service": hostile, "rank_ms": 0, "since_ms": 1, "seen_ms": 1, "core_ms": 1,
        "bytes": 1, "short_of": f"queue:{hostile}", "reason": hostile,
        "quote": Quote({"basis": hostile}, Work(), hostile, 1.0, 1, 1, 1, 1, reason=hostile).to_text(),
    }  # fmt: skip
    with pages.services.registry.transaction() as session:
        session.execute(insert(lake_waiting), [waits, waits | {"scope": OBSERVED}])
    try:
        with open_page(browser) as opened:
            page = opened.page
            page.goto(f"{pages.url}/plugin/lake/backlog")
            page.locator("table.backlog").get_by_text("<img src=x").first.wait_for(timeout=40_000)
            page.wait_for_timeout(300)
            assert page.title() != "owned"
            assert page.locator(".lake img").count() == 0
            for path in ("/plugin/lake?q=onerror", f"/plugin/lake/tables/{table_id}"):
                page.goto(f"{pages.url}{path}")
                page.locator("h1, .table-list").get_by_text("<img src=x").first.wait_for()
                page.wait_for_timeout(300)
                assert page.title() != "owned"
                assert page.locator(".lake img").count() == 0
    finally:
        pages.services.registry.forget(table_id)


# --- Actions: what the page sends to Airflow's own API, which a route of the browser stands for here


def test_action_says_what_will_happen_sends_it_to_airflow_and_shows_its_answer(
    pages: ServedPages, browser: Any
) -> None:
    sent: list[dict[str, Any]] = []
    refusals = ["Dag with dag_id: 'lake_table_service' has import errors and cannot be triggered"]

    def answer(route: Any) -> None:
        if refusals:
            route.fulfill(status=400, json={"detail": refusals.pop()})
            return
        sent.append(route.request.post_data_json)
        route.fulfill(json={"dag_run_id": sent[-1]["dag_run_id"], "state": "queued"})

    with open_page(browser) as opened:
        page = opened.page
        page.route("**/api/v2/dags/lake_table_service/dagRuns", answer)
        page.goto(f"{pages.url}/plugin/lake/tables/{pages.table_id}")
        card = page.locator("article.card").filter(has_text="Compaction").first
        card.get_by_role("button", name="Dry run").click()
        dialog = page.get_by_role("dialog", name="Dry run: compaction of orders")
        dialog.get_by_text("changes nothing").wait_for()
        assert opened.violations() == []
        dialog.get_by_role("button", name="Cancel").click()
        dialog.wait_for(state="detached")
        card.get_by_role("button", name="Dry run").click()
        dialog.get_by_role("button", name="Dry run").click()
        dialog.get_by_text("has import errors and cannot be triggered").wait_for()
        dialog.get_by_role("button", name="Dry run").click()
        dialog.get_by_role("link", name="Open the run").wait_for()
    (body,) = sent
    assert body["dag_run_id"].startswith("orders.compaction.by_hand_")
    assert body["conf"] == {
        "base_path": str(pages.folder / "orders"), "table_name": "orders", "service": "compaction", "instants": [],
        "mode": "schedule_and_execute", "dry_run": True, "reason": "dry run by ada on the Lake page",
    }  # fmt: skip


def as_airflow_answers(text: str) -> str:
    """Return a Variable's text as Airflow's API does: JSON is read, masked and written again."""
    return json.dumps(json.loads(text))


def test_pause_goes_into_the_variable_and_leaves_its_other_entries(pages: ServedPages, browser: Any) -> None:
    sent: list[tuple[str, dict[str, Any]]] = []
    known = {"tables": [{"name": "clicks", "pool": "heavy"}]}
    variable = {"text": json.dumps(known)}

    def answer(route: Any) -> None:
        if route.request.method == "GET":
            route.fulfill(json={"key": "lake_tables", "value": as_airflow_answers(variable["text"])})
            return
        sent.append((route.request.method, route.request.post_data_json))
        variable["text"] = route.request.post_data_json["value"]
        route.fulfill(json={})

    with open_page(browser) as opened:
        page = opened.page
        page.route("**/api/v2/variables/**", answer)
        page.goto(f"{pages.url}/plugin/lake/tables/{pages.table_id}")
        page.locator(".title-line").get_by_role("button", name="Pause").click()
        dialog = page.get_by_role("dialog", name="Pause orders")
        dialog.get_by_label("Why").fill("a move")
        dialog.locator("input[type=datetime-local]").fill("2099-01-02T03:04")
        dialog.get_by_role("button", name="Pause").click()
        dialog.get_by_text("Variable lake_tables is written. It takes effect").wait_for()
    ((method, body),) = sent
    assert method == "PATCH"
    own, *rest = json.loads(body["value"])["tables"]
    assert (own["base_path"], rest) == (str(pages.folder / "orders"), known["tables"])
    assert own["paused"].endswith(": a move")
    assert own["paused_until"].startswith("2099-01-0")


@pytest.mark.parametrize("when", ["before the write", "over the write"])
def test_pause_of_another_person_at_the_same_moment_is_not_lost(pages: ServedPages, browser: Any, when: str) -> None:
    theirs = json.dumps({"tables": [{"name": "clicks", "mode": "observe"}]})
    variable = {"text": json.dumps({"tables": []})}
    calls: list[str] = []

    def answer(route: Any) -> None:
        method = route.request.method
        calls.append(method)
        if method == "GET":
            if when == "before the write" and calls == ["GET", "GET"]:
                variable["text"] = theirs
            route.fulfill(json={"key": "lake_tables", "value": as_airflow_answers(variable["text"])})
            return
        variable["text"] = route.request.post_data_json["value"]
        if when == "over the write" and calls.count("PATCH") == 1:
            variable["text"] = theirs  # of a page that had read the same text before
        route.fulfill(json={})

    with open_page(browser) as opened:
        page = opened.page
        page.route("**/api/v2/variables/**", answer)
        page.goto(f"{pages.url}/plugin/lake/tables/{pages.table_id}")
        page.locator(".title-line").get_by_role("button", name="Pause").click()
        dialog = page.get_by_role("dialog", name="Pause orders")
        dialog.get_by_role("button", name="Pause").click()
        dialog.get_by_text("Variable lake_tables is written. It takes effect").wait_for()
    own, other = json.loads(variable["text"])["tables"]
    assert (set(own), other) == ({"base_path", "paused"}, {"name": "clicks", "mode": "observe"})


@pytest.mark.parametrize(("name", "how"), [("lake", "503"), ("table", "no connection")])
def test_page_keeps_its_data_while_airflow_does_not_answer_and_says_since_when(
    pages: ServedPages, browser: Any, name: str, how: str
) -> None:
    path, shown = paths(pages)[name]
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}{path}")
        page.get_by_text(shown).first.wait_for()
        away = page.locator(".away")
        assert away.count() == 0

        def refuse(route: Any) -> None:
            route.abort() if how == "no connection" else route.fulfill(status=503, body="Service Unavailable")

        page.route("**/lake/api/**", refuse)
        away.wait_for(timeout=30_000 * PATIENCE)
        page.wait_for_timeout(9_000)  # until all tries of a query have failed
        assert away.count() == 1
        assert re.fullmatch(
            r"No answer from Airflow since \d\d:\d\d; retrying\. What you see is from then\.", away.inner_text().strip()
        )
        assert page.get_by_text(shown).first.is_visible()
        assert page.get_by_text("not found").count() == 0
        assert page.get_by_role("alert").filter(has_text="Failed to fetch").count() == 0
        assert opened.violations() == []
        page.unroute("**/lake/api/**")
        away.wait_for(state="detached", timeout=60_000 * PATIENCE)


def test_problem_is_snoozed_with_a_reason_marked_and_heard_again(pages: ServedPages, browser: Any) -> None:
    search = TableSearch(states=(TableState.BLOCKED,), limit=1)
    (listed,) = page_of_tables(pages.services.registry, search).rows
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake/tables/{listed.table.table_id}")
        page.get_by_role("button", name="Snooze", exact=True).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("For").select_option("3 days")
        dialog.get_by_label("Why").fill("<b>until Monday</b>")
        assert opened.violations() == []
        dialog.get_by_role("button", name="Snooze", exact=True).click()
        dialog.get_by_text("The problem is snoozed.").wait_for()
        dialog.get_by_role("button", name="Close").click()
        page.get_by_text("Snoozed until").wait_for()
        mark = page.locator(".mark-chip").filter(has_text="snoozed")
        assert mark.get_attribute("title") == "ada: <b>until Monday</b>"
        assert page.locator(".title-line .chip").filter(has_text="blocked").count() == 0
        page.goto(f"{pages.url}/plugin/lake?mark=snoozed")
        page.get_by_role("link", name=listed.table.table_name, exact=True).click()
        page.get_by_role("button", name="End the snooze").click()
        dialog.get_by_role("button", name="End the snooze").click()
        dialog.get_by_text("The snooze has ended.").wait_for()
        dialog.get_by_role("button", name="Close").click()
        page.locator(".title-line .chip").filter(has_text="blocked").wait_for()
        assert opened.complaints == []


def test_one_service_is_paused_with_name_and_reason_and_resumed(
    pages: ServedPages, browser: Any, tmp_path: Path
) -> None:
    services, before = pages.services, pages.services.tables
    variable = {"text": ""}

    def answer(route: Any) -> None:
        if route.request.method == "GET" and not variable["text"]:
            route.fulfill(status=404, json={"detail": "not found"})
        elif route.request.method == "GET":
            route.fulfill(json={"key": "lake_tables", "value": as_airflow_answers(variable["text"])})
        else:
            variable["text"] = route.request.post_data_json["value"]
            route.fulfill(json={})

    file = tmp_path / "tables.yaml"
    file.write_text("tables: []\n", encoding="utf-8")
    object.__setattr__(services, "tables", TablesSource(str(file), lambda: variable["text"], monotonic_s=every_read()))
    try:
        with open_page(browser, timezone_id="Europe/Berlin") as opened:
            page = opened.page
            page.route("**/api/v2/variables**", answer)
            page.route("**/api/v2/variables/**", answer)
            page.goto(f"{pages.url}/plugin/lake/tables/{pages.table_id}")
            card = page.locator("article.card").filter(has_text="Clean").first
            card.get_by_role("button", name="Pause").click()
            dialog = page.get_by_role("dialog", name="Pause clean of orders")
            dialog.get_by_text("pending plans wait, too").wait_for()
            dialog.get_by_label("Why").fill("<b>an audit</b>")
            dialog.get_by_label("Until").fill("2126-01-02T03:04")
            dialog.get_by_role("button", name="Pause").click()
            dialog.get_by_text("less than or equal to").wait_for()
            dialog.get_by_label("Until").fill("2096-01-02T03:04")
            assert opened.violations() == []
            dialog.get_by_role("button", name="Pause").click()
            dialog.get_by_text("Variable lake_tables is written. It takes effect").wait_for()
            dialog.get_by_role("button", name="Close").click()
            (entry,) = json.loads(variable["text"])["tables"]
            assert entry["base_path"] == str(pages.folder / "orders")
            assert set(entry) == {"base_path", "clean"}
            assert entry["clean"]["paused"].startswith("ada on ")
            assert entry["clean"]["paused_until"] == "2096-01-02T02:04:00+00:00"
            assert entry["clean"]["paused"].endswith(" UTC: <b>an audit</b>")
            card.locator(".chip", has_text="paused").wait_for()
            for other in page.locator("article.card").filter(has_not_text="Clean").all():
                assert other.get_by_role("button", name="Resume").count() == 0
            card.get_by_role("button", name="Resume").click()
            dialog = page.get_by_role("dialog", name="Resume clean of orders")
            dialog.get_by_role("button", name="Resume").click()
            dialog.get_by_text("Variable lake_tables is written. It takes effect").wait_for()
            dialog.get_by_role("button", name="Close").click()
            card.get_by_role("button", name="Pause").wait_for()
            assert json.loads(variable["text"]) == {"tables": []}
    finally:
        object.__setattr__(services, "tables", before)


def every_read() -> Any:
    """Return a clock by which each read of the Variable is old at the next one."""
    return itertools.count(0, 60).__next__


def test_week_is_shown_next_to_the_week_before(pages: ServedPages, browser: Any) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake")
        panel = page.get_by_role("region", name="next to the")
        ended = panel.locator("tr", has_text="Ended runs").locator("td")
        day = ended.first.inner_text()
        panel.get_by_role("button", name="7 d").click()
        page.get_by_role("heading", name="A week next to the week before").wait_for()
        assert panel.locator("th[scope=col]").all_inner_texts() == ["All tables", "Last 7 d", "7 d before"]
        assert ended.first.inner_text() != day
        panel.get_by_role("button", name="24 h").click()
        page.get_by_role("heading", name="A day next to the day before").wait_for()


# --- One action on several tables


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_tables_are_chosen_by_keyboard_tried_and_paused_with_a_line_for_each(
    pages: ServedPages, browser: Any, theme: str
) -> None:
    variable = {"text": json.dumps({"tables": [{"name": "clicks", "pool": "heavy"}]})}

    def answer(route: Any) -> None:
        if route.request.method == "GET":
            route.fulfill(json={"key": "lake_tables", "value": as_airflow_answers(variable["text"])})
            return
        variable["text"] = route.request.post_data_json["value"]
        route.fulfill(json={})

    with open_page(browser) as opened:
        page = opened.page
        page.route("**/api/v2/variables/**", answer)
        page.goto(f"{pages.url}/plugin/lake?theme={theme}&q=carts_00&sort=name")
        page.locator("[data-index='2']").wait_for()
        bar = page.get_by_role("group", name="Chosen tables")
        assert bar.count() == 0
        page.locator(".scroller").focus()
        for key in ("ArrowDown", " ", "ArrowDown", " ", " ", " "):
            page.keyboard.press(key)
        bar.get_by_text("2 tables chosen").wait_for()
        assert page.locator(".scroller input:checked").count() == 2
        assert opened.violations() == []
        bar.get_by_role("button", name="Pause").focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Pause: 2 tables")
        dialog.get_by_label("Why").fill("<b>a move</b>")
        dialog.get_by_role("button", name="Dry run").click()
        dialog.get_by_text("It would pause 2 tables; 0 refused, 0 need nothing.").wait_for()
        assert opened.violations() == []
        assert "paused" not in variable["text"], "a dry run changes nothing"
        # What was checked is not what is asked for any more.
        dialog.get_by_label("Service").select_option("clean")
        assert dialog.get_by_role("button", name="Pause 2 tables").count() == 0
        dialog.get_by_role("button", name="Dry run").click()
        dialog.get_by_role("button", name="Pause 2 tables").click()
        dialog.get_by_text("Paused 2 tables; 0 refused").wait_for()
        *own, other = json.loads(variable["text"])["tables"]
        assert [set(entry) for entry in own] == [{"base_path", "clean"}] * 2
        assert {entry["clean"]["paused"].partition(": ")[2] for entry in own} == {"<b>a move</b>"}
        assert other == {"name": "clicks", "pool": "heavy"}
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        bar.get_by_role("button", name="Clear").click()
        bar.wait_for(state="detached")
        assert opened.complaints == []


def test_all_that_match_are_run_and_what_is_refused_says_why_on_a_phone(pages: ServedPages, browser: Any) -> None:
    sent: list[dict[str, Any]] = []

    def answer(route: Any) -> None:
        sent.append(route.request.post_data_json)
        lines = [
            {"table_id": "a", "table": "clicks_1", "base_path": "/a", "verdict": "done", "reason": "due: 12 commits",
             "run_id": "clicks_1.compaction.1"},
            {"table_id": "b", "table": "clicks_2", "base_path": "/b", "verdict": "refused",
             "reason": "held <i>: set a=b", "run_id": ""},
        ]  # fmt: skip
        if not sent[-1]["dry_run"]:
            del lines[1]
        route.fulfill(json={"lines": lines, "problem": "DAG lake_table_service is paused", "text": ""})

    with open_page(browser, width=390, height=844) as opened:
        page = opened.page
        page.route("**/lake/api/bulk/run", answer)
        page.goto(f"{pages.url}/plugin/lake?q=clicks_0")
        page.locator("[data-index='0']").wait_for()
        total = re.match(r"[\d,]+", page.get_by_text(re.compile(r"^[\d,]+ tables$")).inner_text())
        assert total is not None
        page.locator("[data-index='0'] .pick").click()
        bar = page.get_by_role("group", name="Chosen tables")
        bar.get_by_role("button", name=f"Choose all {total[0]} that match").click()
        assert page.evaluate("document.querySelector('.lake').scrollWidth - innerWidth") <= 0
        assert opened.violations() == []
        bar.get_by_role("button", name="Run a service").click()
        dialog = page.get_by_role("dialog", name=f"Run a service: {total[0]} tables")
        dialog.get_by_role("button", name="Dry run").click()
        dialog.get_by_text("It would start on 1 table; 1 refused, 0 need nothing.").wait_for()
        dialog.get_by_text("refused: held <i>: set a=b").wait_for()
        dialog.get_by_text("DAG lake_table_service is paused").wait_for()
        assert page.evaluate("document.querySelector('dialog').scrollWidth - innerWidth") <= 0
        assert opened.violations() == []
        dialog.get_by_role("button", name="Run 1 table").click()
        assert dialog.get_by_role("link", name="Open the run").get_attribute("href") == (
            "/dags/lake_table_service/runs/clicks_1.compaction.1"
        )
    checked, done = sent
    assert checked["matching"]["q"] == "clicks_0"
    assert (checked["service"], checked["dry_run"]) == ("compaction", True)
    assert (done["table_ids"], done["dry_run"]) == (["a"], False), "what was checked is what is done"


def test_more_tables_than_the_maximum_get_no_action(pages: ServedPages, browser: Any) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake")
        page.get_by_label("Choose all that match").click()
        bar = page.get_by_role("group", name="Chosen tables")
        bar.get_by_text("At most 200 at a time: narrow the filter").wait_for()
        assert bar.get_by_role("button").all_inner_texts() == ["Clear"]


def test_failed_run_is_cleared_and_a_viewer_sees_no_action(pages: ServedPages, browser: Any) -> None:
    cleared: list[str] = []

    def answer(route: Any) -> None:
        cleared.append(route.request.url)
        route.fulfill(json={})

    with open_page(browser) as opened:
        page = opened.page
        page.route("**/api/v2/dags/**/clear", answer)
        page.goto(f"{pages.url}/plugin/lake/operations?state=failed")
        page.get_by_role("button", name="Retry").first.click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Retry").click()
        dialog.get_by_text("tries it again").wait_for()
    assert len(cleared) == 1
    with open_page(browser) as opened:
        opened.page.context.add_cookies([{"name": "user", "value": "vic", "url": pages.url}])
        for path in (f"/plugin/lake/tables/{pages.table_id}", "/plugin/lake/operations?state=failed"):
            with opened.page.expect_response("**/lake/api/me"):
                opened.page.goto(f"{pages.url}{path}")
            opened.page.locator("table.operations tbody tr").first.wait_for()
            for name in ("Dry run", "Run now", "Retry", "Pause", "Forget", "Rebuild"):
                assert opened.page.get_by_role("button", name=name).count() == 0


def test_unknown_table_and_a_server_that_is_gone_are_said_in_a_sentence(pages: ServedPages, browser: Any) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake/tables/no-such-table")
        page.get_by_text("There is no table no-such-table").wait_for()
        page.route("**/lake/api/**", lambda route: route.fulfill(status=403, json={"detail": "no"}))
        page.goto(f"{pages.url}/plugin/lake/operations")
        page.get_by_text("log in to Airflow again").wait_for()


def test_pictures_of_the_documentation_have_the_words_of_the_pages(pages: ServedPages, browser: Any) -> None:
    images = Path(__file__).parents[3] / "docs" / "images"
    shown = take_screens(pages, browser)
    # Otherwise: python -m tests.support.lake_pages --screens docs/images
    assert json.loads((images / WORDS).read_text(encoding="utf-8")) == shown
    assert {one.stem for one in images.glob("lake-*.png")} == set(shown)
    assert all(one.stat().st_size < 250_000 for one in images.glob("lake-*.png"))
