"""The trigger that waits for an item of work of a standing application.

One request a second asks for all items of work that wait in one triggerer, however many they are.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from airflow.sdk.configuration import conf
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.job_contract import LIVE_WORK, Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping


POLL_INTERVAL_S = 1.0
REPORTED_WITHIN_S = 2.0
"""How long Airflow's scheduler takes to hear of a worker's end when its supervisor has seen it."""
MAX_AT_ONCE = 500


class WorkTrigger(BaseTrigger):
    """Waits for the end of an item that a standing application runs, and renews the lease of its task meanwhile.

    It fires once, with the item (`state`, `result`, `message`) and what the task gave it to carry. Its whole state is
    in its arguments, so another triggerer continues.
    """

    def __init__(
        self, item_id: str, table_id: str, service: str, lease: str, lake_conn_id: str, carried: dict[str, Any]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.item_id = item_id
        self.table_id = table_id
        self.service = service
        self.lease = lease
        self.lake_conn_id = lake_conn_id
        self.carried = carried

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        return (
            "airflow_lake_provider.triggers.work.WorkTrigger",
            {
                "item_id": self.item_id,
                "table_id": self.table_id,
                "service": self.service,
                "lease": self.lease,
                "lake_conn_id": self.lake_conn_id,
                "carried": self.carried,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll once a second, and log the item's lines."""
        item: Mapping[str, Any] = {"state": "waiting"}
        seen = 0
        poller = find_poller(self.lake_conn_id)
        while item["state"] in LIVE_WORK:
            question = {"item_id": self.item_id, "seen": seen}
            renewed = {"table_id": self.table_id, "service": self.service, "lease": self.lease}
            item = await poller.poll(question | renewed)
            seen = int(item.get("line_count", seen))
            for line in item.get("lines", ()):
                self.log.info("%s", line)
        await asyncio.sleep(find_rest_s(float(self.carried.get("began_s", 0.0)), time.time()))
        ended = {name: str(item.get(name, "")) for name in ("state", "result", "message")}
        yield TriggerEvent({**ended, "lease": self.lease, **self.carried})  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Cancel the item: a person has cleared or marked its task."""
        await asyncio.to_thread(self._cancel)

    def _cancel(self) -> None:
        hook = LakeHook(self.lake_conn_id)
        try:
            hook.cancel_work(self.item_id, "its task was cleared, or marked, in Airflow")
            # Until the item has ended, the manager gives the lease to no other try.
            hook.release_executor(self.table_id, Service(self.service), self.lease)
        except LakeError as error:
            # The next try of the service has it cancelled before it begins.
            self.log.warning("item %s was not cancelled: %s", self.item_id, error)


def find_rest_s(deferred_s: float, now_s: float) -> float:
    """Return how long a trigger waits so that Airflow has heard of the end of the worker that deferred.

    Airflow's supervisor (`_monitor_subprocess`) notices a worker's end up to `[workers] min_heartbeat_interval` later.
    If the task has begun again by then, the scheduler attributes that report to the second worker, and fails the try
    ("finished with state success, but the task instance's state attribute is running").
    """
    interval_s = conf.getfloat("workers", "min_heartbeat_interval", fallback=5.0)
    return max(0.0, deferred_s + interval_s + REPORTED_WITHIN_S - now_s) if interval_s else 0.0


class WorkPoller:
    """Polls the manager for all items that wait in one event loop; the next request answers each question."""

    def __init__(self, hook: LakeHook) -> None:
        self._hook = hook
        self._waiting: dict[str, tuple[dict[str, Any], list[asyncio.Future[Mapping[str, Any]]]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def poll(self, question: dict[str, Any]) -> Mapping[str, Any]:
        """Return the item. One that the manager does not know counts as cancelled."""
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        _, futures = self._waiting.get(question["item_id"], ({}, []))
        self._waiting[question["item_id"]] = (question, [*futures, future])
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._task = loop.create_task(self._run(), name="lake-work")
        return await future

    async def _run(self) -> None:
        while self._waiting:
            await asyncio.sleep(POLL_INTERVAL_S)
            chosen = dict(list(self._waiting.items())[:MAX_AT_ONCE])
            try:
                found = await asyncio.to_thread(self._hook.ask_work, [question for question, _ in chosen.values()])
            except LakeError as error:
                self._hook.log.warning("the manager does not answer for %d items: %s", len(chosen), error)
                continue
            for item_id, (_, futures) in chosen.items():
                # What was asked meanwhile is answered by the next request.
                _, now = self._waiting[item_id]
                rest = [future for future in now if future not in futures]
                self._waiting.pop(item_id)
                if rest:
                    self._waiting[item_id] = (_, rest)
                unknown = {"state": "cancelled", "message": "the manager does not know the item"}
                for future in futures:
                    if not future.done():
                        future.set_result(found.get(item_id, unknown))


_POLLERS: dict[tuple[int, str], WorkPoller] = {}


def find_poller(lake_conn_id: str) -> WorkPoller:
    """Return the poller of this event loop for a connection."""
    key = (id(asyncio.get_running_loop()), lake_conn_id)
    if key not in _POLLERS:
        _POLLERS[key] = WorkPoller(LakeHook(lake_conn_id))
    return _POLLERS[key]
