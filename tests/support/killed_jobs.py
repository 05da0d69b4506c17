"""A Spark job in a process of its own that is killed in the middle, as a driver dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import to_json
from tests.support.hudi_tables import ROOT, SPARK_JOBS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_lake_provider.job_contract import JobRequest
    from tests.support.hudi_tables import Table

PATIENCE_S = 120 * float(os.environ.get("LAKE_PATIENCE", "1"))
_CODE = (
    "import sys; from pathlib import Path; from tests.support.spark_session import open_test_session\n"
    "from airflow_lake_provider.job_contract import JobRequest, from_json; import run_services\n"
    "spark = open_test_session(Path(sys.argv[2]))\n"
    "print(run_services.run_job(spark, from_json(JobRequest, Path(sys.argv[1]).read_text())))"
)


def kill_at(table: Table, request: JobRequest, folder: Path, is_there: Callable[[], bool]) -> None:
    """Run the job as spark-submit does, and kill its process as soon as the table is at that point."""
    folder.mkdir()
    path = folder / "request.json"
    path.write_text(to_json(request))
    process = subprocess.Popen(
        [sys.executable, "-c", _CODE, str(path), str(folder / "session")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, SPARK_JOBS)))},
        start_new_session=True,
    )
    try:
        until = time.monotonic() + PATIENCE_S
        while not is_there():
            assert process.poll() is None, "it ended before it came there"
            assert time.monotonic() < until
            time.sleep(0.001)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # Hudi's next client would do so a minute later.
    (table.path / ".hoodie" / "lock").unlink(missing_ok=True)
