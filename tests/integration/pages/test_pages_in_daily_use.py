"""The Lake's pages in Chromium as people use them over a day: links, the back button, sleep, no network, odd names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import select, update

from airflow_lake_provider.manager.db.schema import lake_search, lake_table
from local_stack.processes import PATIENCE
from tests.support.browser import needs_chromium, needs_frontend, open_browser, open_page
from tests.support.lake_pages import ServedPages, serve

pytestmark = [pytest.mark.integration, needs_chromium, needs_frontend]

TABLES = 60
SEARCHES = {
    "": "Search by name, database or path",
    "/operations": "Table, database or path",
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPages]:
    with serve(tmp_path_factory.mktemp("lake"), TABLES) as pages:
        yield pages


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


@pytest.mark.parametrize(("path", "name"), [("", "Tables"), ("/operations", "Operations")])
def test_link_that_leaves_a_search_empties_its_field(pages: ServedPages, browser: Any, path: str, name: str) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake{path}")
        search = page.get_by_placeholder(SEARCHES[path])
        search.fill("web")
        page.wait_for_url("**q=web**")
        page.get_by_role("navigation", name="Lake").get_by_role("link", name=name).click()
        page.wait_for_url(f"**/plugin/lake{path}")
        page.wait_for_timeout(1_000)  # longer than a search waits for its next letter
        assert (urlsplit(page.url).query, search.input_value()) == ("", "")


def test_tile_shows_all_that_it_counts_after_a_search_and_back_returns_to_the_search(
    pages: ServedPages, browser: Any
) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake")
        search = page.get_by_placeholder(SEARCHES[""])
        search.press_sequentially("no such table", delay=40)
        page.wait_for_url("**q=no+such+table**")
        page.get_by_text("No table matches").wait_for()
        page.get_by_role("link", name="Running now").click()
        page.wait_for_url("**state=running**")
        page.wait_for_timeout(1_000)
        assert (parse_qs(urlsplit(page.url).query), search.input_value()) == ({"state": ["running"]}, "")
        page.go_back()
        page.get_by_text("No table matches").wait_for()
        page.wait_for_timeout(1_000)
        assert (parse_qs(urlsplit(page.url).query), search.input_value()) == ({"q": ["no such table"]}, "no such table")


def test_answer_that_lay_unread_while_the_machine_slept_puts_no_age_wrong_for_longer_than_the_next(
    pages: ServedPages, browser: Any
) -> None:
    with open_page(browser) as opened:
        page = opened.page
        old = {"answers": 4}

        def answer(route: Any) -> None:
            found = route.fetch()
            headers = dict(found.headers)
            if old["answers"] > 0:
                old["answers"] -= 1
                headers["date"] = "Sat, 01 Jan 2000 00:00:00 GMT"
            route.fulfill(response=found, headers=headers)

        page.route("**/lake/api/**", answer)
        page.goto(f"{pages.url}/plugin/lake/tables/{pages.table_id}")
        facts = page.locator(".facts")
        facts.get_by_text(re.compile(r"evaluated in \d+ d")).wait_for()
        facts.get_by_text(re.compile(r"evaluated \d+ (s|min) ago")).wait_for(timeout=30_000 * PATIENCE)
        page.unroute_all(behavior="ignoreErrors")


def test_page_on_a_machine_without_a_network_says_so_and_goes_on_trying(pages: ServedPages, browser: Any) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake/tables/{pages.table_id}")
        page.get_by_text("instants in sight").wait_for()
        page.context.set_offline(True)
        away = page.locator(".away")
        away.wait_for(timeout=30_000 * PATIENCE)
        assert page.get_by_text("instants in sight").is_visible()
        page.context.set_offline(False)
        away.wait_for(state="detached", timeout=60_000 * PATIENCE)


def test_year_that_is_half_typed_is_no_error(pages: ServedPages, browser: Any) -> None:
    with open_page(browser) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake/operations")
        rows = page.locator("table.operations tbody tr")
        rows.first.wait_for()
        for name in ("From", "Until"):
            page.get_by_label(name, exact=True).fill("0002-11-27")
            page.wait_for_timeout(1_000)
            assert page.get_by_role("alert").all_inner_texts() == []
        page.get_by_text("No run matches").wait_for()
        assert opened.complaints == []


@pytest.fixture
def renamed(pages: ServedPages) -> Iterator[str]:
    """Give the first table the longest names there are."""
    mine = lake_table.c.table_id == pages.table_id
    registry = pages.services.registry
    row = registry.get(pages.table_id)
    name = "long_" * 50
    with registry.transaction() as session:
        session.execute(
            update(lake_table).where(mine).values(table_name=name, database_name="d" * 120, owner="o" * 200)
        )
    yield name
    with registry.transaction() as session:
        before = {"table_name": row.table_name, "database_name": row.database_name, "owner": row.owner}
        session.execute(update(lake_table).where(mine).values(**before))


@pytest.mark.parametrize("width", [390, 720, 1440])
def test_longest_names_leave_the_page_as_wide_as_the_window(
    pages: ServedPages, browser: Any, renamed: str, width: int
) -> None:
    with open_page(browser, width=width, height=844) as opened:
        page = opened.page
        page.goto(f"{pages.url}/plugin/lake/tables/{pages.table_id}")
        page.get_by_role("heading", name=renamed).wait_for()
        page.get_by_text("instants in sight").wait_for()
        assert page.evaluate("document.querySelector('.lake').scrollWidth - innerWidth") <= 0


def test_run_of_a_table_with_the_longest_name_has_an_id_that_airflow_takes(
    pages: ServedPages, browser: Any, renamed: str
) -> None:
    sent: list[dict[str, Any]] = []

    def answer(route: Any) -> None:
        sent.append(json.loads(route.request.post_data))
        route.fulfill(json={"dag_run_id": sent[-1]["dag_run_id"]})

    with open_page(browser) as opened:
        page = opened.page
        page.route("**/api/v2/**", answer)
        page.goto(f"{pages.url}/plugin/lake/tables/{pages.table_id}")
        page.get_by_role("button", name="Run now").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Run now").click()
        page.get_by_role("dialog").get_by_role("button", name="Close").wait_for()
    (run,) = sent
    assert len(run["dag_run_id"]) <= 250
    assert run["conf"]["table_name"] == renamed


def test_run_that_a_person_marked_as_a_success_says_so_and_why_its_try_failed(pages: ServedPages, browser: Any) -> None:
    rows = pages.services.instance_gateway.rows  # type: ignore[attr-defined]
    run = next(one for one in rows if one.service == "clean" and one.state == "success")
    marked = replace(run, report=replace(run.report, outcome="failed", error="Executor memory must be positive"))
    rows[rows.index(run)] = marked
    try:
        with open_page(browser) as opened:
            page = opened.page
            page.goto(f"{pages.url}/dags/{run.dag_id}/runs/{run.run_id}/plugin/lake_dag_run")
            page.locator(".chip", has_text="marked success").wait_for()
            page.goto(f"{pages.url}/plugin/lake/operations?table_id={run.table_id}&service=clean")
            row = page.locator("tr", has_text="Executor memory must be positive").first
            row.wait_for()
            assert row.locator(".chip").inner_text() == "marked success"
            assert row.locator(".why").inner_text().startswith("a try failed: Executor memory must be positive")
            assert opened.violations() == []
    finally:
        rows[rows.index(marked)] = run


def base_paths(pages: ServedPages) -> set[str]:
    """Return the paths of all tables but the first."""
    with pages.services.registry.transaction() as session:
        others = select(lake_table.c.base_path).where(lake_table.c.table_id != pages.table_id)
        return set(session.scalars(others))


def test_tables_of_one_name_show_their_paths_in_the_list_and_in_the_bill(tmp_path: Path, browser: Any) -> None:
    with serve(tmp_path, 12) as twins, open_page(browser) as opened:
        rows = base_paths(twins)
        with twins.services.registry.transaction() as session:
            for table in (lake_table, lake_search):
                others = table.c.table_id != twins.table_id
                session.execute(update(table).where(others).values(table_name="events", database_name="raw"))
        page = opened.page
        page.goto(f"{twins.url}/plugin/lake")
        names = page.locator("[data-index] .c-name", has_text="events")
        names.first.wait_for()
        shown = {text.rpartition(" · ")[2].split("\n")[-1] for text in names.all_inner_texts()}
        assert shown == rows
        cut = "[...document.querySelectorAll('.c-name small.whole')].filter(e => e.scrollWidth > e.clientWidth).length"
        assert page.evaluate(cut) == 0
        page.goto(f"{twins.url}/plugin/lake/bill")
        lines = page.locator("table.bill td.name", has_text="events")
        lines.first.wait_for()
        assert {text.split("\n")[-1] for text in lines.all_inner_texts()} == rows
        path = lines.first.locator("small").inner_text()
        lines.first.get_by_role("link").click()
        page.get_by_text("1 table", exact=True).wait_for()
        assert page.locator("[data-index] .c-name a").get_attribute("title") == path
        assert opened.violations() == []
