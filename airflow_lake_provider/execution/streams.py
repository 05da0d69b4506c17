"""The task's half of a driver of many streams: it claims what is due, and reports what becomes of each stream.

The driver asks for work as it has room (`Channel`), and `StreamRuns` answers. The manager says which sinks are due; a
sink that is claimed waits here for a place for some seconds only, and its claim is renewed until its run has ended.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.execution.arguments import (
    parse_settings,
    refuse_secrets,
    require_allowed_table,
)
from airflow_lake_provider.execution.engines.job_files import JobFolder, resolve_secrets
from airflow_lake_provider.execution.reporting import HoldCap, ProgressReporter, report_result, report_sink
from airflow_lake_provider.execution.sink_connections import options_with_connection
from airflow_lake_provider.hooks.open_tables import AirflowMetrics
from airflow_lake_provider.hudi.base_path import normalise_base_path
from airflow_lake_provider.job_contract import FailureKind, from_json, to_json
from airflow_lake_provider.metrics import REPLICATION_FAILURES
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.transactions import Order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.hooks.lake import LakeHook

log = logging.getLogger(__name__)

CLAIM_INTERVAL_S = 1.0
"""How often the task asks the manager which sinks are due, while the driver has room."""
_CLAIM_AHEAD = 4
"""So many sinks for each place may wait here."""
_CLAIM_SHARE = 10
"""The manager goes through all tables for an answer: the task waits so many times as long before it asks again."""
MEASURE_INTERVAL_S = 60.0


@dataclass
class _StreamRun:
    """A stream's run in the driver of many: what its end needs."""

    due: Mapping[str, Any]
    progress: ProgressReporter
    lost: str = ""
    """Why the driver has to end it; empty while it may go on."""


class StreamRuns:
    """The runs of one driver's streams: those that wait for a place in it, those that run, and what they brought.

    The manager lists first the sinks that have lacked something for the longest.
    """

    def __init__(self, hook: LakeHook, run_id: str, folder: JobFolder, at_once: int) -> None:
        self._hook = hook
        self._run_id = run_id
        self._folder = folder
        self._at_once = at_once
        self._waiting: dict[str, Mapping[str, Any]] = {}
        self._running: dict[str, _StreamRun] = {}
        self._snapshots = set[str]()
        self._claims_from_s = 0.0
        self._measured_s: dict[str, float] = {}
        self.commits = self.rows = self.failures = 0
        self.asked = 0
        """How often the driver has asked or reported."""

    def claim(self) -> int:
        """Claim what is due, if there is room, and not more than once a second; return how many wait for a place."""
        began_s = time.monotonic()
        room = _CLAIM_AHEAD * self._at_once - len(self._waiting)
        if room > 0 and began_s >= self._claims_from_s:
            known = [*self._waiting, *self._running]
            snapshots = max(1, self._at_once // 2) - len(self._snapshots)
            self._claims_from_s = began_s + CLAIM_INTERVAL_S
            found = self._hook.begin_due_sinks(self._run_id, known, room, max(0, snapshots))
            took_s = time.monotonic() - began_s
            self._claims_from_s = began_s + max(CLAIM_INTERVAL_S, _CLAIM_SHARE * took_s)
            for due in found:
                stream = f"{due['table_id']}.{due['name']}"
                self._waiting[stream] = due
                if due.get("begins_with_snapshot"):
                    self._snapshots.add(stream)
        return len(self._waiting)

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the driver: a run has ended, or it has room."""
        self.asked += 1
        if "ended" in question:
            self._log(question["ended"], question["lines"])
            try:
                self._end(str(question["ended"]), from_json(ReplicationResult, question["result"]))
            except Exception:  # the outermost loop: what cannot be reported of one stream must not end the others
                log.exception("the end of stream %s was not reported", question["ended"])
            return {}
        for stream, lines in question["lines"].items():
            self._log(stream, lines)
        cancel = {stream: run.lost for stream, run in self._running.items() if run.lost}
        requests: dict[str, str] = {}
        free = int(question["free"])
        while len(requests) < free:
            if not self._waiting:
                self._claim_safely()
            if not self._waiting:
                break
            stream = next(iter(self._waiting))
            request = self._begin(stream, self._waiting.pop(stream))
            if request is not None:
                requests[stream] = to_json(request)
        return {"requests": requests, "cancel": cancel}

    def end_all(self, problem: str) -> None:
        """Report that what was running has ended, for that reason. A claim of what has not begun ends by itself."""
        for stream in list(self._running):
            self._end(stream, ReplicationResult(stream, ended=True, failure_kind=FailureKind.OTHER, message=problem))
        self._waiting.clear()

    def _claim_safely(self) -> None:
        try:
            self.claim()
        except LakeError as error:
            log.warning("which sinks are due is unknown: %s", error)

    def _begin(self, stream: str, due: Mapping[str, Any]) -> ReplicationRequest | None:
        progress = self._reporter(stream, due)
        try:
            request = self._request(stream, due)
        except Exception as error:  # of this stream alone: a connection that is missing, say
            log.exception("stream %s did not begin", stream)
            progress.end(
                {"problem": str(error) if isinstance(error, LakeError) else f"{type(error).__name__}: {error}"}
            )
            self._count_failure(stream)
            return None
        self._running[stream] = _StreamRun(due, progress)
        progress.start()
        return request

    def _request(self, stream: str, due: Mapping[str, Any]) -> ReplicationRequest:
        base_path = normalise_base_path(str(due["base_path"]))
        begun = due["begun"]
        require_allowed_table(base_path)
        settings = parse_settings(due["options"], "options")
        refuse_secrets(settings, "options", f"table {base_path}, sink {due['name']}")
        order = Order(
            stream,
            request=str(begun["request"]),
            snapshot=bool(begun["needs_snapshot"]),
            generation=int(begun["generation"]),
            ends_early=True,
        )
        return ReplicationRequest(
            base_path=base_path,
            table_name=str(due["table_name"]),
            database=str(due["database"]),
            kind=str(due["sink"]),
            order=order,
            result_path=self._result_path(stream),
            mode=ChangeMode(due["mode"]),
            key=tuple(due["key"]),
            options=resolve_secrets(options_with_connection(str(due["sink"]), settings)),
        )

    def _reporter(self, stream: str, due: Mapping[str, Any]) -> ProgressReporter:
        path = self._result_path(stream)
        return ProgressReporter(
            self._hook, due["table_id"], due["name"], self._run_id, lambda: path, on_lost=lambda: self._lose(stream)
        )

    def _result_path(self, stream: str) -> str:
        return self._folder.of(f"{self._run_id}.{stream}", self._folder.try_number).result_path

    def _lose(self, stream: str) -> None:
        run = self._running.get(stream)
        if run is not None:
            run.lost = str(run.progress.lost)

    def _end(self, stream: str, result: ReplicationResult) -> None:
        run = self._running.pop(stream, None)
        if run is None:
            return
        self._snapshots.discard(stream)
        run.progress.stop()
        if run.lost:
            # The reports of the run that has the sink now are newer.
            log.warning("stream %s: %s", stream, run.lost)
            return
        problem = result.message or result.waits_for
        run.progress.end_with(result, run.due["changed_time"])
        self.commits, self.rows = self.commits + result.commits, self.rows + result.rows
        if result.has_failed:
            log.error("stream %s: %s", stream, problem)
            self._count_failure(stream)
        elif problem:
            log.warning("stream %s: %s", stream, problem)
        report_result(AirflowMetrics(), result)
        self._measure(stream, run.due, is_urgent=bool(problem))

    def _measure(self, stream: str, due: Mapping[str, Any], *, is_urgent: bool) -> None:
        """Report lag and hold, and release a hold beyond its cap; once a minute, for it reads the timeline again."""
        now_s = time.monotonic()
        if not is_urgent and now_s - self._measured_s.get(stream, float("-inf")) < MEASURE_INTERVAL_S:
            return
        self._measured_s[stream] = now_s
        cap = HoldCap(due["max_hold_s"], due["max_held_bytes"])
        report_sink(AirflowMetrics(), self._hook, due["base_path"], due["name"], cap)

    def _count_failure(self, stream: str) -> None:
        self._snapshots.discard(stream)
        self.failures += 1
        AirflowMetrics().incr(REPLICATION_FAILURES)

    def _log(self, stream: str, lines: Sequence[str]) -> None:
        for line in lines:
            log.info("%s: %s", stream, line)
