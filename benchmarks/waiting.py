"""What does Airflow itself spend on a service, while its engine works? `make bench NAME=waiting`.

The engine sleeps for `--work` seconds, so that all CPU time is Airflow's and the provider's. `--services` services are
due at once, on as many tables, in a whole Airflow on PostgreSQL:

`held`: engine `spark-submit`: a worker process waits for the end of the job.
`deferred`: engine `warm`: the task submits an item of work, and its run waits in the triggerer.

`held_cpu_s`, `deferred_cpu_s`: CPU seconds of API server, scheduler with its workers, and triggerer per service, less
what they take while nothing happens. Parts of them: `held_scheduler_cpu_s`, `held_triggerer_cpu_s`,
`held_api_server_cpu_s`, and `deferred_scheduler_cpu_s`, `deferred_triggerer_cpu_s`, `deferred_api_server_cpu_s`.
`held_resident_mib`, `deferred_resident_mib`: how much more memory they have while all services run, per service.
`held_s`, `deferred_s`: until all have ended.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from benchmarks import sleeping_engine
from benchmarks.detection import WORK
from benchmarks.scale_fleet import THRESHOLD, FleetLoad, Site, cpu_of, open_site, resident_bytes, say
from local_stack.processes import wait_until

IDLE_S = 30.0
COMPONENTS = ("api-server", "scheduler", "triggerer")
WARM_UP = 1


def main() -> int:
    """Run both ways, print progress, and one line of JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=8)
    parser.add_argument("--work", type=float, default=60.0, help="seconds that the engine sleeps for each")
    options = parser.parse_args()
    result: dict[str, Any] = {"services": options.services, "work_s": options.work}
    for way, engine in (("held", "spark-submit"), ("deferred", "warm")):
        result |= {f"{way}_{name}": figure for name, figure in measure(engine, options.services, options.work).items()}
        say(f"{way}: {result}")
    print(json.dumps(result))
    return 0


def measure(engine: str, services: int, work_s: float) -> dict[str, float]:
    """Return the figures of one way."""
    folder = WORK / "bench-waiting"
    shutil.rmtree(folder, ignore_errors=True)
    settings = {
        "AIRFLOW__LAKE__ENGINE": engine,
        "AIRFLOW__LAKE__MAX_ACTIVE_SERVICES": str(services),
        "AIRFLOW__LAKE__WARM_AT_ONCE": str(services),
        "AIRFLOW__LAKE__WARM_IDLE_S": "3600",
        "AIRFLOW__CORE__PARALLELISM": str(services + 2),
        sleeping_engine.WORK_VARIABLE: str(work_s),
    }
    try:
        with open_site(folder, FleetLoad(services + WARM_UP, 0, 0, 0), settings) as site:
            # The first one brings the standing application with it, as each later one would find it.
            make_due(site, site.paths[:WARM_UP])
            wait_until_ended(site, WARM_UP, work_s)
            idle, idle_bytes = usage_of(site, IDLE_S), resident(site)
            began, before = time.monotonic(), cpu_of(site.airflow)
            make_due(site, site.paths[WARM_UP:])
            with most_resident(site) as most:
                wait_until_ended(site, services + WARM_UP, work_s)
            took_s = time.monotonic() - began
            spent = {name: cpu_s - before[name] - idle[name] * took_s for name, cpu_s in cpu_of(site.airflow).items()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    parts = {f"{name.replace('-', '_')}_cpu_s": round(spent[name] / services, 2) for name in COMPONENTS}
    return {
        "s": round(took_s, 1),
        "cpu_s": round(sum(spent[name] for name in COMPONENTS) / services, 2),
        "resident_mib": round((max(most) - idle_bytes) / services / 2**20, 1),
        **parts,
    }


def make_due(site: Site, paths: list[str]) -> None:
    """Bring tables to their threshold, and announce the last commits."""
    with httpx.Client(timeout=30, trust_env=False) as client:
        for path in paths:
            for _ in range(THRESHOLD):
                requested = site.write(path)
                time.sleep(0.002)
            site.announce(client, path, requested)


def wait_until_ended(site: Site, runs: int, work_s: float) -> None:
    """Wait until so many runs have succeeded. Raises when one has failed."""

    def has_ended() -> bool:
        time.sleep(1)
        states = [run["state"] for run in site.airflow.service_runs()]
        assert "failed" not in states, states
        return states.count("success") >= runs

    wait_until(has_ended, 600 + 2 * work_s, f"{runs} services", [])


def usage_of(site: Site, for_s: float) -> dict[str, float]:
    """Return the CPU seconds per second of each component while nothing happens."""
    before = cpu_of(site.airflow)
    time.sleep(for_s)
    return {name: (cpu_s - before[name]) / for_s for name, cpu_s in cpu_of(site.airflow).items()}


def resident(site: Site) -> int:
    return sum(resident_bytes(site.airflow, name) for name in COMPONENTS)


@contextmanager
def most_resident(site: Site) -> Iterator[list[int]]:
    """Record the resident memory each second; in the end the list has all values."""
    values, ended = [resident(site)], threading.Event()

    def watch() -> None:
        while not ended.wait(1):
            values.append(resident(site))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield values
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
