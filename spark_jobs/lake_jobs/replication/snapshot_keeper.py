"""Keeps the files of a snapshot from a writer that cleans by itself: a savepoint for as long as the snapshot lasts.

A clean that deletes files of the snapshot's instant makes the snapshot begin again, and next to a writer that cleans
with each commit it would do so indefinitely. A savepoint is what every cleaner respects. Hudi takes the table's lock
itself when it completes one, and a lock that is held already would stop it. So the run does not hold the lock from the
choice of the instant on: it reads the timeline again after the savepoint.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import JobRequest, Mode, Service, ServiceRequest, find_lock_problem
from lake_jobs.driver.failure import causes_of, describe
from lake_jobs.services.context import open_context, open_waiting_client
from lake_jobs.services.savepoint_rules import MADE_BY_REPLICATION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from airflow_lake_provider.replication.job import ReplicationRequest
    from lake_jobs.replication.source import HudiSource
    from lake_jobs.services.context import ServiceContext

log = logging.getLogger(__name__)

MAX_AGE_S = 7 * 86_400.0
"""The savepoint of another stream, which may be gone from the tables file, is removed when it is older."""


class SnapshotKeeper:
    """Makes and removes the savepoints of one stream's snapshots; never those of others."""

    def __init__(self, spark: SparkSession, request: ReplicationRequest, source: HudiSource) -> None:
        self._spark = spark
        self._request = request
        self._source = source
        self._comment = f"made by stream {request.order.stream} for its snapshot, which also removes it"

    @contextmanager
    def open(self) -> Iterator[Callable[[str], bool]]:
        """Return what makes the savepoint of an instant, and says whether there is one now.

        Where nothing has cleaned the table, or no lock reaches its writers, there is none. Raises Py4JJavaError when
        the lock cannot be acquired.
        """
        context = self._find_context() if self._request.run_options.makes_savepoints and self._was_cleaned() else None
        if context is None:
            yield lambda instant: False
            return
        with open_waiting_client(context) as client:
            yield lambda instant: self._make(client, instant)

    def let_go(self, instant: str) -> None:
        """Remove this stream's savepoints but the one at this instant; what fails is left to the next run."""
        found = self._source.find_savepoints(MADE_BY_REPLICATION)
        made_before_ms = (time.time() - MAX_AGE_S) * 1000
        own = [each for each in found if each.comment == self._comment and each.instant != instant]
        over = own + [each for each in found if each.comment != self._comment and each.made_ms < made_before_ms]
        context = self._find_context() if over else None
        if context is None:
            return
        try:
            with open_waiting_client(context) as client:
                for savepoint in over:
                    client.deleteSavepoint(savepoint.instant)
        except Py4JJavaError as error:
            why = describe(causes_of(error.java_exception))
            log.warning("stream %s: its savepoints stay until its next run: %s", self._request.order.stream, why)
        # The kept timeline is then one without them.
        self._source.read_timeline()

    def _was_cleaned(self) -> bool:
        seen = self._source.read_timeline()
        return bool(seen.retained_from or seen.cleaned_without_bound)

    def _make(self, client: Any, instant: str) -> bool:
        seen = self._source.read_timeline()
        if instant in seen.saved:
            return True
        # Hudi makes savepoints of completed writes, and leaves out a file slice that a pending compaction is about to
        # replace: the one that the compaction begins may have no file yet.
        pending = [planned for planned in seen.compactions - seen.silent if planned <= instant]
        if instant not in seen.known or pending:
            why = f"compaction {min(pending, default=instant)} is pending"
        else:
            try:
                client.savepoint(instant, MADE_BY_REPLICATION, self._comment)
                return True
            except Py4JJavaError as error:
                why = describe(causes_of(error.java_exception))
        log.warning("stream %s: its snapshot at %s has no savepoint: %s", self._request.order.stream, instant, why)
        return False

    def _find_context(self) -> ServiceContext | None:
        request = self._request
        problem = find_lock_problem(request.run_options.hudi)
        if problem is None:
            service = ServiceRequest(Service.SAVEPOINT, Mode.EXECUTE)
            options = dict(request.run_options.hudi)
            job = JobRequest("", request.base_path, request.table_name, (service,), "", options)
            try:
                return open_context(self._spark, job, service)
            except ServiceRefusedError as error:
                problem = str(error)
        log.warning("stream %s makes and removes no savepoint: %s", request.order.stream, problem)
        return None
