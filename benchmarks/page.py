"""How fast do the Lake's pages answer for ten thousand tables while notices arrive, and how soon are rows to be seen?

It serves the pages on made-up tables in a process of its own (SQLite, without Airflow), marks 40 tables a second as a
writer's callbacks do, and asks the API as an open page does. `first_rows_s` is the time from the navigation of Chromium
to the first row, with an empty cache; without Chromium it is left out. `request_cpu_ms` is what this process spends on
a request, with client and notices; `opening_cpu_s` is what Chromium spends on an opening.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from airflow_lake_provider.manager.db.rows import Notice, Source
from tests.support.browser import CHROMIUM, open_browser, open_page
from tests.support.lake_pages import ServedPages, serve
from tools.frontend import BUNDLE

NOTICES_PER_S = 40


def measure(tables: int, requests: int) -> dict[str, float]:
    """Return the figures."""
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder), tables) as pages:
        stop = threading.Event()
        writer = threading.Thread(target=send_notices, args=(pages, stop), daemon=True)
        writer.start()
        try:
            found = measure_api(pages, requests)
            if CHROMIUM is not None:
                found |= measure_openings(pages)
        finally:
            stop.set()
            writer.join()
    packed = len(gzip.compress((BUNDLE / "lake.js").read_bytes(), 9))
    return {"tables": tables, **found, "bundle_kb": round(packed / 1000, 1)}


def send_notices(pages: ServedPages, stop: threading.Event) -> None:
    """Mark tables until the measurement ends."""
    paths = [row.base_path for row in pages.services.registry.list_names(1000)]
    while not stop.wait(1 / NOTICES_PER_S):
        pages.services.registry.mark_dirty(Notice(random.choice(paths), "t", Source.COMMIT_CALLBACK))


def measure_api(pages: ServedPages, requests: int) -> dict[str, float]:
    """Return percentiles over the requests of open pages: overview, tables, a search, a table, runs, backlog, bill."""
    paths = (
        "overview", "tables?limit=100", "tables?limit=100&state=blocked&state=failing", "tables?q=orders_12&limit=100",
        f"tables/{pages.table_id}", "operations?limit=100", "backlog", "backlog/history?days=7", "bill",
    )  # fmt: skip
    times_ms = []
    with httpx.Client(base_url=f"{pages.url}/lake/api/", timeout=30) as client:
        for path in paths:
            client.get(path).raise_for_status()
        cpu_before_s = time.process_time()
        for number in range(requests):
            begun = time.perf_counter()
            client.get(paths[number % len(paths)]).raise_for_status()
            times_ms.append((time.perf_counter() - begun) * 1000)
        request_cpu_ms = (time.process_time() - cpu_before_s) * 1000 / requests
    times_ms.sort()
    at = lambda share: round(times_ms[min(len(times_ms) - 1, int(len(times_ms) * share))], 1)  # noqa: E731
    return {"api_p50_ms": at(0.5), "api_p99_ms": at(0.99), "request_cpu_ms": round(request_cpu_ms, 2)}


def measure_openings(pages: ServedPages) -> dict[str, float]:
    """Return medians over five openings in a browser without a cache."""
    times_s = []
    cpu_s = []
    with open_browser() as browser:
        for _ in range(5):
            before = read_children_cpu_s()
            with open_page(browser) as opened:
                begun = time.perf_counter()
                opened.page.goto(f"{pages.url}/plugin/lake", wait_until="commit")
                opened.page.locator("[data-index='0']").wait_for()
                times_s.append(time.perf_counter() - begun)
                after = read_children_cpu_s()
            cpu_s.append(sum(spent - before.get(pid, 0.0) for pid, spent in after.items()))
    return {"first_rows_s": round(sorted(times_s)[2], 2), "opening_cpu_s": round(sorted(cpu_s)[2], 2)}


def read_children_cpu_s() -> dict[int, float]:
    """Return the CPU seconds of each process below this one that lives, by its id."""
    spent = {}
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            spent[child.pid] = times.user + times.system
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=1200)
    args = parser.parse_args()
    print(json.dumps(measure(args.tables, args.requests)))


if __name__ == "__main__":
    main()
