"""What happens while a service is on its way: a writer switches the metadata table, or wakes; a file cannot be read.

Each happens at a chosen moment of the service, in the same process, by functions that are swapped for the step.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.job_contract import Mode, Outcome, Service
from airflow_lake_provider.planner.decide import decide_now, load_facts
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS, LastRuns, RunEnd
from airflow_lake_provider.planner.rules import Decision
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from tests.oracle.actions import HOUR_S, PATIENCE_S, HeldWrite, NothingToDoError
from tests.row_oracle.world import LOCK_FOLDER, RowWorld, swapped

NEW_KEYS = 10_000
WAITS_FOR_A_ROLLBACK = {
    "hoodie.write.lock.client.wait_time_ms_between_retry": "500",
    "hoodie.write.lock.client.num_retries": "40",
}
"""Settings of a writer that gives up its lock after about 20 s."""


class BusyWorld(RowWorld):
    """A table where something else happens while a service runs."""

    def _cluster_meanwhile(self, chance: random.Random) -> None:
        self._switch_during(Service.CLUSTERING, chance)

    def _compact_meanwhile(self, chance: random.Random) -> None:
        self._switch_during(Service.COMPACTION, chance)

    def _switch_during(self, service: Service, chance: random.Random) -> None:
        """Let a writer switch the metadata table before a plan's files are written, or before they are committed."""
        self._require_alone()
        moment = chance.choice(("write_files", "commit_files"))
        rewrite = importlib.import_module("lake_jobs.verify.rewrite")
        act = getattr(rewrite, moment)
        is_switched: list[bool] = []

        def act_late(*args: Any) -> Any:
            if not is_switched:
                is_switched.append(True)
                self._switch_and_insert(chance)
            return act(*args)

        with swapped(rewrite, moment, act_late):
            self._run(service, Mode.SCHEDULE_AND_EXECUTE, {})
        if self.result is not None and self.result.outcome is Outcome.FAILED:
            # The next run takes the table as it is then.
            self._run(service, Mode.EXECUTE, {})

    def _switch_and_insert(self, chance: random.Random) -> None:
        """Insert new rows, which go into files that no plan has."""
        self.setup = replace(self.setup, metadata="1" if self.setup.metadata == "off" else "off")
        rows = self._orders(chance, 2).withColumn("id", F.col("id") + NEW_KEYS + self.commits * 100)
        more = {"hoodie.datasource.write.operation": "insert", LOCK_FOLDER: f"{self.path}/.hoodie"}
        # Next to a plan it may lose a conflict.
        with contextlib.suppress(Py4JError, PySparkException):
            self._save(rows, more)

    # --- a writer that stood still for minutes ----------------------------------------------------------------

    def _roll_back_waking(self, chance: random.Random) -> None:
        """Let a writer whose heartbeat has expired go on at the moment when its write is rolled back.

        It goes on only where it gets the table's lock, as all writers do. Where it does not, it ends without its
        commit: a real one finds its own heartbeat expired then, which here lives in one process with the history.
        """
        self._require_alone()
        held = self._hold(chance, WAITS_FOR_A_ROLLBACK)
        self.held.append(held)
        if self.settle():
            return
        self.files.touch(f".hoodie/.heartbeat/{held.instant}", int((time.time() - HOUR_S) * 1000))
        lock = Path(self.path) / ".hoodie" / "lock"
        context = importlib.import_module("lake_jobs.services.context").ServiceContext
        log = context.log_progress

        def log_and_wake(context: Any, message: str) -> None:
            log(context, message)
            if message.startswith("rolling ") and not lock.exists():
                self._let_go(held)

        with swapped(context, "log_progress", log_and_wake):
            self._run(Service.ROLLBACK, Mode.EXECUTE, {})
        if held in self.held:
            self.held.remove(held)
            held.outcome.exception(PATIENCE_S)

    def _let_go(self, held: HeldWrite) -> None:
        """Let a held write end, acknowledged or not."""
        if held in self.held:
            self.held.remove(held)
            held.lock.unlink(missing_ok=True)
            held.outcome.exception(PATIENCE_S)

    # --- a plan that fails in each try ------------------------------------------------------------------------

    def _cluster_spoilt(self, chance: random.Random) -> None:
        """Let a clustering fail in its last try by a file that cannot be read, and do what the manager then does."""
        self._require_alone()
        files = [Path(self.path) / name for name in self.list_base_files()]
        if not files or self._answers().pending("clustering", "replacecommit"):
            raise NothingToDoError
        complaints = list(self.complaints)
        with contextlib.ExitStack() as stack:
            for file in files:
                away = file.rename(file.with_suffix(".away"))
                stack.callback(away.replace, file)
                file.touch()
            self._run(Service.CLUSTERING, Mode.SCHEDULE_AND_EXECUTE, {})
        self.complaints = complaints
        if self.result is None or self.result.outcome is not Outcome.FAILED:
            return
        first = self._decide_clustering(NO_LAST_RUNS)
        last_runs = NO_LAST_RUNS.started(first, "r1").ended("r1", RunEnd.FAILED, _now_ms())
        decision = self._decide_clustering(last_runs)
        if decision.mode is Mode.WITHDRAW:
            self._run(Service.CLUSTERING, decision.mode, {}, decision.plan_instants)

    def _decide_clustering(self, last_runs: LastRuns) -> Decision:
        words = {"clustering": {"enabled": True, "small_files": 2}, "doctor": {"stuck_after_s": 0.1}}
        zone = {"spark.driver.extraJavaOptions": f"-Duser.timezone={self.zone}"}
        policy = TablePolicy.model_validate({**words, "hudi_options": self.lock, "spark_conf": zone})
        views = TableViewCache(SharedTimelines())
        facts = load_facts(views, views.refresh(self.path), policy, _now_ms())
        decisions = decide_now(views, facts, policy, _now_ms(), last_runs)
        return next(decision for decision in decisions if decision.service is Service.CLUSTERING)


def _now_ms() -> int:
    return int(time.time() * 1000)
