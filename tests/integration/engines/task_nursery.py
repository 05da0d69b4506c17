"""Forks what Airflow runs: tasks of a service, triggers and the task of a standing application; each a real process.

`python -m tests.integration.engines.task_nursery` reads one JSON per line and answers with the process's id. A fork
costs milliseconds, the imports of a task seconds. The last line of a process's log says how it ended:
`RETURNED`, `DEFERRED`, `EVENT` or `FAILED`, with JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import traceback
from typing import Any

from airflow.sdk.exceptions import TaskDeferred

from airflow_lake_provider.execution.engines import spark_submit
from airflow_lake_provider.execution.job import run_standing_application
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator
from airflow_lake_provider.triggers.work import WorkTrigger
from tests.support.task_context import task_instance

IMPORTED = spark_submit
"""Which engines import on use."""


def run_task(order: dict[str, Any]) -> tuple[str, Any]:
    operator = HudiTableServiceOperator(task_id="run_service", **order["operator"])
    context: Any = {"run_id": order["run_id"], "ti": task_instance(order["try_number"])}
    try:
        if "event" in order:
            return "RETURNED", operator.execute_complete(context, order["event"])
        return "RETURNED", operator.execute(context)
    except TaskDeferred as deferred:
        return "DEFERRED", deferred.trigger.serialize()[1]


def run_trigger(order: dict[str, Any]) -> tuple[str, Any]:
    async def first_event() -> Any:
        async for event in WorkTrigger(**order["trigger"]).run():
            return event.payload

    return "EVENT", asyncio.run(first_event())


def run_application(order: dict[str, Any]) -> tuple[str, Any]:
    return "RETURNED", run_standing_application(order["key"], order["run_id"], order["try_number"], "lake_default")


KINDS = {"task": run_task, "trigger": run_trigger, "application": run_application}


def run_child(order: dict[str, Any]) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(target, number)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
    try:
        how, what = KINDS[order["kind"]](order)
    except BaseException as error:  # noqa: BLE001 - a task may fail by anything
        traceback.print_exc()
        how, what = "FAILED", f"{type(error).__name__}: {error}"
    sys.stderr.flush()
    os.write(2, f"\n{how} {json.dumps(what)}\n".encode())
    os._exit(0)


def main() -> None:
    # A process that has ended is gone at once, as with an init that reaps.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            run_child(json.loads(line))
        print(pid, flush=True)


if __name__ == "__main__":
    main()
