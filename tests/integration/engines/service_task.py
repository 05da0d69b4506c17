"""A task's process: `python -m tests.integration.engines.service_task '{"run_id": "r", "try_number": 1, ...}'`.

Runs the operator's `execute` as a worker does, and prints what it returns as one line of JSON. With a `sink` among the
operator's arguments it is that of replication. A SIGTERM calls `on_kill`, as it does in Airflow when a running task is
cleared.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Any

from airflow_lake_provider.operators.replication import HudiReplicationOperator
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator
from tests.support.task_context import task_instance


def main(text: str) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    task = json.loads(text)
    context: Any = {"run_id": task["run_id"], "ti": task_instance(task["try_number"])}
    kind = HudiReplicationOperator if "sink" in task["operator"] else HudiTableServiceOperator
    operator = kind(task_id="run", **task["operator"])

    def end(*_: Any) -> None:
        operator.on_kill()
        sys.exit(143)

    signal.signal(signal.SIGTERM, end)
    print("RETURNED " + json.dumps(operator.execute(context)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
