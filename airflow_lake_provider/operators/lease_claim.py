"""How a try gets the executor's lease: at once when it is free, or when its holder has surely ended; else it waits.

A lease is long, so that a running job bears an API server that is away. A worker that died must not block the next try
for as long: where the next try can see that the holder's process has ended, it says so, and takes the lease over. What
the holder's job left running is ended by the job's record (`JobRun`), before anything begins.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_lake_provider.boot_time import boot_s
from airflow_lake_provider.engines.job_files import find_text, write_text
from airflow_lake_provider.engines.process_identity import identity_from_text, identity_to_text, this_process
from airflow_lake_provider.errors import ExecutorBusyError, LeaseHolder

if TYPE_CHECKING:
    from airflow_lake_provider.engines.job_files import JobFolder
    from airflow_lake_provider.hooks.lake import LakeHook
    from airflow_lake_provider.job_contract import Service

log = logging.getLogger(__name__)

ASK_AGAIN_AFTER_S = 10.0
MARGIN_S = 30.0
"""How much longer than the holder's lease is waited, for servers that answer late."""


@dataclass(frozen=True, slots=True)
class TakenLease:
    """A lease that was given for `lease_s`, asked for at `asked_s` of `boot_s`."""

    token: str
    lease_s: float
    asked_s: float


class LeaseClaim:
    """One try's claim on the lease of a table's service."""

    def __init__(self, hook: LakeHook, table_id: str, service: Service, folder: JobFolder) -> None:
        self.hook = hook
        self.key = (table_id, service)
        self._folder = folder
        self._me = (folder.run_id, folder.try_number)
        self._waits_until_s: float | None = None

    @property
    def what(self) -> str:
        """The service and the table, for messages."""
        table_id, service = self.key
        return f"{service} of table {table_id}"

    def take(self) -> TakenLease:
        """Take the lease. Raises ExecutorBusyError while another run holds it, or an earlier try for too long."""
        me = this_process()
        if me is not None:
            # Before the lease is asked for: whoever finds it held can find its holder.
            write_text(self._folder.holder_path, identity_to_text(me))
        ended: LeaseHolder | None = None
        while True:
            asked_s = boot_s()
            try:
                token, lease_s = self.hook.acquire_executor(*self.key, *self._me, ended=ended)
            except ExecutorBusyError as error:
                ended = self._settle(error, ended)
            else:
                return TakenLease(token, lease_s, asked_s)

    def _settle(self, error: ExecutorBusyError, ended: LeaseHolder | None) -> LeaseHolder | None:
        """Return the holder when it has surely ended, None after a pause. Raises when there is nothing to wait for."""
        holder = error.holder
        if holder is None or holder == ended:
            raise error
        if self._has_ended(holder):
            log.info(
                "%s: try %d of run %s has ended, its lease is taken over", self.what, holder.try_number, holder.run_id
            )
            return holder
        if not self._is_earlier_try(holder):
            raise error
        self._pause(holder, error)
        return None

    def _is_earlier_try(self, holder: LeaseHolder) -> bool:
        run_id, try_number = self._me
        return holder.run_id == run_id and holder.try_number < try_number

    def _has_ended(self, holder: LeaseHolder) -> bool:
        """Whether the holder's process has surely ended. An earlier try of this run, given up by Airflow, is killed."""
        if (holder.run_id, holder.try_number) == self._me:
            # The answer to this very try was lost.
            return True
        text = find_text(self._folder.of(holder.run_id, holder.try_number).holder_path)
        process = None if text is None else identity_from_text(text)
        if process is None or not process.is_here:
            return False
        if process.is_alive and self._is_earlier_try(holder):
            log.warning("%s: process %d of try %d still runs and is killed", self.what, process.pid, holder.try_number)
            process.kill()
        return not process.is_alive

    def _pause(self, holder: LeaseHolder, error: ExecutorBusyError) -> None:
        now_s = boot_s()
        if self._waits_until_s is None:
            self._waits_until_s = now_s + holder.rest_s + MARGIN_S
        rest_s = self._waits_until_s - now_s
        if rest_s <= 0:
            raise error
        log.info(
            "%s: try %d of this run holds the lease, and from here (another host or container) nobody sees whether it "
            "has ended; its lease ends in %.0f s unless it is renewed; this try waits until %s",
            self.what,
            holder.try_number,
            holder.rest_s,
            (datetime.now(UTC) + timedelta(seconds=rest_s)).isoformat(timespec="seconds"),
        )
        if self.hook.pause(min(ASK_AGAIN_AFTER_S, rest_s, max(0.1, holder.rest_s))):
            raise error
