"""Take the plan of a compaction from the timeline that would change what readers see, with the files of its try."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from lake_jobs.driver.failure import causes_of, describe
from lake_jobs.hudi.settings import ALWAYS
from lake_jobs.hudi.table import find_instant, hold_lock, open_client, remove_heartbeat
from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS

if TYPE_CHECKING:
    from lake_jobs.services.context import ServiceContext


def drop_compaction(context: ServiceContext, instant: str) -> str:
    """Roll back what was written for a plan, and remove the plan; return what became of it, in words.

    Before table version 8 the plan must stay: log files written since name it as their base, and would lose it.
    """
    if context.first_state.table_version < FIRST_VERSION_OF_OWN_LOGS:
        return "; the plan stays pending, because log files written since belong to it"
    hudi = context.spark._jvm.org.apache.hudi
    try:
        with open_client(context.spark, context.job.base_path, context.settings, ALWAYS) as client:
            table = hudi.table.HoodieSparkTable.create(client.getConfig(), client.getEngineContext())
            begun = find_instant(table.getActiveTimeline().filterPendingCompactionTimeline(), instant)
            if begun is not None and begun.isInflight():
                table.rollbackInflightCompaction(begun, client.getTransactionManager())
            with hold_lock(context.spark, client):
                state = context.read_table_state()
                plan = find_instant(state.timeline.filterPendingCompactionTimeline(), instant)
                if plan is not None and plan.isRequested():
                    state.timeline.deletePending(plan)
                    remove_heartbeat(context.spark, context.job.base_path, instant)
    except Py4JJavaError as error:
        return f"; the plan is still pending: {describe(causes_of(error.java_exception))}"
    return "; the plan is withdrawn"
