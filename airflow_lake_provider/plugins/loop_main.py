"""The process of the loop, which an API server starts: `python -m airflow_lake_provider.plugins.loop_main`."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys

from airflow_lake_provider.manager.loop_child import Parent, serve

log = logging.getLogger(__name__)

NICENESS = 5
"""Where cores are short, the server's requests go first: evaluations can wait, and then take a quarter of a core."""


def main() -> int:
    """Run the loop until the parent ends."""
    # The parent ends this process by its standard input. A signal to the group reaches the parent as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(NICENESS)
    # Whatever a library prints belongs into the log.
    reports = os.dup(1)
    os.dup2(2, 1)
    parent = Parent(reports)
    try:
        _run(parent)
    except Exception:  # the outermost call: the parent starts the process again
        log.exception("the process of the manager's loop cannot run")
        return 1
    return 0


def _run(parent: Parent) -> None:
    # After `Parent`: Airflow takes seconds, in which the parent may end.
    from airflow.utils.providers_configuration_loader import providers_configuration_loaded

    from airflow_lake_provider.timeline_server.server import use_one_heap

    use_one_heap()

    @providers_configuration_loaded
    def run() -> None:
        from airflow_lake_provider.plugins.lake_plugin import open_loop_services

        _initialize_metrics()
        services = open_loop_services()
        gc.freeze()
        asyncio.run(serve(services, parent))

    run()


def _initialize_metrics() -> None:
    """Have Airflow's metrics sent from this process, as its own servers do."""
    from airflow.configuration import conf
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils

    try:
        names = conf.getboolean("metrics", "legacy_names_on")
        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=names)
    except Exception:  # wrong settings of metrics must not stop the loop; the API server says what is wrong
        log.warning("this process sends no metrics", exc_info=True)


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)  # a thread that a store holds must not keep the process
