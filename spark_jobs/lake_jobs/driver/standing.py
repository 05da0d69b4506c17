"""A standing application: pulls requests and runs those of several tables side by side.

Table services come from the manager, streams of replication from the task (`replication/streams.py`). The manager's
application holds a lease, which the task that submitted it renews. The manager answers its holder only, so an
application whose lease has passed on learns that with its next question, and ends itself and its JVM at once. Each item
runs in a thread, in a pool of Spark's fair scheduler, with Hudi clients of its own; what fails in one fails it alone.
Items that were running when the application died are given to the next one, and Hudi resumes or rolls back what they
left.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from airflow_lake_provider.errors import EngineError, LakeError, LeaseLostError, ManagerUnreachableError
from airflow_lake_provider.job_contract import (
    WORK_AT_ONCE,
    WORK_CA,
    WORK_IDLE_S,
    WORK_KEY,
    WORK_LEASE,
    WORK_MAX_AGE_S,
    WORK_TOKEN,
    WORK_URL,
    FailureKind,
    JobRequest,
    JobResult,
    Outcome,
    Service,
    ServiceResult,
    to_json,
)
from airflow_lake_provider.shared.http_answer import ask
from lake_jobs.driver.files import capture_lines, log_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PULL_INTERVAL_S = 0.5
RETRY_INTERVAL_S = 2.0
TIMEOUT_S = 30.0
POOL = "spark.scheduler.pool"
MAX_IN_TURN = 6
"""So many items of one table run in a row; then other tables have their turn."""


class ItemResult(Protocol):
    """What the application asks of an item's result."""

    @property
    def has_failed(self) -> bool:
        """Whether the item did not end well."""


_Request = TypeVar("_Request")
_Result = TypeVar("_Result", bound=ItemResult)
_Ended = TypeVar("_Ended", contravariant=True)


class Spark(Protocol):
    """What a standing application needs of Spark's context."""

    def setLocalProperty(self, key: str, value: str) -> None: ...  # noqa: D102 - Spark's name

    def addJobTag(self, tag: str) -> None: ...  # noqa: D102

    def removeJobTag(self, tag: str) -> None: ...  # noqa: D102

    def cancelJobsWithTag(self, tag: str) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class StandingSettings:
    """How long an application stays, and how many items it runs at once."""

    at_once: int
    idle_s: float
    max_age_s: float

    @staticmethod
    def of(options: Mapping[str, str]) -> StandingSettings:
        """Return the settings of a request's options."""
        return StandingSettings(int(options[WORK_AT_ONCE]), float(options[WORK_IDLE_S]), float(options[WORK_MAX_AGE_S]))

    def why_ends(self, began_s: float, worked_s: float, now_s: float, running: int) -> str:
        """Return why an application ends now, empty when it stays; times are of the monotonic clock.

        It never ends while items run.
        """
        if running:
            return ""
        if now_s - began_s >= self.max_age_s:
            return f"it is older than {self.max_age_s:.0f} s"
        return f"it had no work for {self.idle_s:.0f} s" if now_s - worked_s >= self.idle_s else ""

    def room(self, began_s: float, now_s: float, running: int) -> int:
        """Return for how many more items there is room; none when it is old, so that it comes to its end."""
        return 0 if now_s - began_s >= self.max_age_s else max(0, self.at_once - running)


class ItemSource(Protocol[_Ended]):
    """Where an application pulls items from. Both methods raise LeaseLostError and ManagerUnreachableError."""

    def pull(
        self, free: int, lines: Mapping[str, list[str]], known: list[str]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return new requests by item, and the items to end with reasons. `known` are the items that run."""

    def finish(self, item_id: str, result: _Ended, lines: list[str], *, takes_next: bool) -> dict[str, str]:
        """Report the end of an item; return the one that follows in its place, if it is to be taken.

        Raises ValueError for a result that is not accepted.
        """


class WorkSource:
    """The manager's routes of work, with the standard library alone."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._url = options[WORK_URL].rstrip("/")
        self._token = options[WORK_TOKEN]
        self._context = ssl.create_default_context()
        if options.get(WORK_CA):
            self._context.load_verify_locations(cadata=options[WORK_CA])
        self._me = {"key": options[WORK_KEY], "lease": options[WORK_LEASE]}

    def pull(
        self, free: int, lines: Mapping[str, list[str]], known: list[str]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return new requests by item, and the items to end with reasons. `known` are the items that run.

        Raises LeaseLostError when this application must end, ManagerUnreachableError when there is no answer.
        """
        answer = self._post("/work/pull", {"free": free, "lines": dict(lines), "known": known})
        return self._part(answer, "requests"), self._part(answer, "cancel")

    def finish(self, item_id: str, result: JobResult, lines: list[str], *, takes_next: bool) -> dict[str, str]:
        """Report the end of an item, with its last lines; return the table's next item, if it is to be taken.

        Raises as `pull` does, and ValueError for a result that is not accepted.
        """
        body = {"item_id": item_id, "result": to_json(result), "lines": lines, "takes_next": takes_next}
        return self._part(self._post("/work/finish", body), "requests")

    def _part(self, answer: Any, name: str) -> dict[str, str]:
        """Return a part that every answer of the manager has: a proxy's page may be JSON with status 200."""
        part = answer.get(name) if isinstance(answer, dict) else None
        if not isinstance(part, dict):
            raise ManagerUnreachableError(f"{self._url} answered without {name!r}, so not the manager: {answer!r:.200}")
        return {str(item): str(text) for item, text in part.items()}

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self._url + path,
            json.dumps(self._me | body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )
        try:
            answer = ask(request, TIMEOUT_S, self._context)
            if answer.is_success:
                return json.loads(answer.content) if answer.content else {}
        except (OSError, ValueError, RecursionError) as error:  # a page in another encoding is no JSON text
            raise ManagerUnreachableError(f"{self._url}{path} does not answer: {error}") from error
        said = f"{answer.content[:300]!r}"
        if answer.status == 409:
            raise LeaseLostError(f"the manager refuses this application: {said}")
        if answer.status in {413, 422}:
            raise ValueError(f"the manager does not accept it: {said}")
        raise ManagerUnreachableError(f"{self._url}{path} answered {answer.status}: {said}")


class ZoneGate:
    """Keeps apart items whose tables name instants in different zones: Hudi keeps one zone for each JVM."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._zone = ""
        self._inside = 0
        self._line: list[object] = []
        """Those that wait, in their order: a zone with many items must not keep the others out for good."""

    @contextmanager
    def enter(self, zone: str) -> Iterator[None]:
        """Wait until no item of another zone is inside, nor one that came earlier waits."""
        place = object()
        with self._free:
            self._line.append(place)
            self._free.wait_for(lambda: self._line[0] is place and (self._inside == 0 or self._zone == zone))
            self._line.pop(0)
            self._zone = zone
            self._inside += 1
            self._free.notify_all()
        try:
            yield
        finally:
            with self._free:
                self._inside -= 1
                self._free.notify_all()


@dataclass
class _Item:
    item_id: str
    slot: int
    lines: list[str] = field(default_factory=list)
    cancelled: str = ""
    lock_file: str = ""


@dataclass(frozen=True, slots=True)
class ItemKind(Generic[_Request, _Result]):
    """What an application's items are: how one is read, how it is run, and what stands for one that did not end well.

    `run` may raise anything. `lock_file_of` names the file of the lock that an item may hold.
    """

    read: Callable[[str], _Request]
    run: Callable[[_Request, Callable[[], str]], _Result]
    fail: Callable[[_Request | None, str], _Result]
    lock_file_of: Callable[[_Request], str] = lambda _: ""


class StandingApplication(Generic[_Request, _Result]):
    """Pulls and runs until it is idle or old.

    `find_end` returns why Spark has ended by itself (it was out of memory), empty while it is there. What fails then is
    not the item's failure and is not reported: the next application is given what this one was running.
    """

    def __init__(
        self,
        source: ItemSource[_Result],
        settings: StandingSettings,
        spark: Spark,
        kind: ItemKind[_Request, _Result],
        find_end: Callable[[], str] = str,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._settings = settings
        self._spark = spark
        self._kind = kind
        self._find_end = find_end
        self._monotonic_s = monotonic_s
        self._guard = threading.Lock()
        # One question at a time: an answer may begin items, and the next question says which ones run.
        self._asking = threading.Lock()
        self._began_s = monotonic_s()
        self._running: dict[str, _Item] = {}
        self._wake = threading.Event()
        self._lost: LakeError | None = None
        self._ran = 0

    def lock_files(self) -> list[str]:
        """Return the lock files of the tables whose items are running."""
        with self._guard:
            return [item.lock_file for item in self._running.values() if item.lock_file]

    def run(self) -> None:
        """Run until there is a reason to end.

        Raises LeaseLostError when another application took over, EngineError when Spark ended by itself.
        """
        began_s = worked_s = self._began_s = self._monotonic_s()
        while True:
            now_s = self._monotonic_s()
            running = self._count()
            if running:
                worked_s = now_s
            why = self._settings.why_ends(began_s, worked_s, now_s, running)
            if why:
                log_progress("standing application", f"ends after {self._ran} items: {why}")
                return
            try:
                self._pull(self._settings.room(began_s, now_s, running))
            except ManagerUnreachableError as error:
                log_progress("standing application", f"{error}; what runs goes on")
                self._wait(RETRY_INTERVAL_S)
            if self._lost is not None:
                raise self._lost
            self._wait(PULL_INTERVAL_S)

    def _pull(self, free: int) -> None:
        with self._asking:
            self._ask(free)

    def _ask(self, free: int) -> None:
        with self._guard:
            known = list(self._running)
            lines = {item.item_id: item.lines for item in self._running.values() if item.lines}
            for item in self._running.values():
                item.lines = []
        try:
            requests, cancel = self._source.pull(free, lines, known)
        except ManagerUnreachableError:
            with self._guard:
                for item_id, kept in lines.items():
                    if item_id in self._running:
                        self._running[item_id].lines[:0] = kept
            raise
        for item_id, reason in cancel.items():
            self._cancel(item_id, reason)
        for item_id, request in requests.items():
            self._start(item_id, request)

    def _cancel(self, item_id: str, reason: str) -> None:
        with self._guard:
            item = self._running.get(item_id)
            if item is None:
                return
            item.cancelled = reason
        # With each pull until it has ended: between two of Spark's jobs there is nothing to cancel.
        self._spark.cancelJobsWithTag(item_id)

    def _start(self, item_id: str, text: str) -> None:
        with self._guard:
            used = {item.slot for item in self._running.values()}
            slot = next(number for number in range(len(used) + 1) if number not in used)
            item = self._running[item_id] = _Item(item_id, slot)
        threading.Thread(target=self._work, args=(item, text), name=f"lake-{item_id}", daemon=True).start()

    def _work(self, item: _Item, text: str) -> None:
        """Run an item, and in the same place those of the same table that wait."""
        in_turn = 1
        following = self._run_one(item, text, has_next=True)
        while following is not None:
            in_turn += 1
            following = self._run_one(*following, has_next=in_turn < MAX_IN_TURN)
        self._wake.set()

    def _run_one(self, item: _Item, text: str, *, has_next: bool) -> tuple[_Item, str] | None:
        result = self._run_safely(item, text)
        if result.has_failed and (why := self._find_end()):
            log_progress(item.item_id, f"it is not reported as failed: {why}")
            self._lost = EngineError(why)
            return None
        while True:
            takes_next = has_next and self._settings.room(self._began_s, self._monotonic_s(), 0) > 0
            try:
                with self._asking:
                    return self._finish(item, result, takes_next=takes_next)
            except ManagerUnreachableError as error:
                log_progress(item.item_id, f"its end is not reported yet: {error}")
                time.sleep(RETRY_INTERVAL_S)
            except ValueError as error:
                result = self._kind.fail(None, f"{error}")
            except LeaseLostError as error:
                self._lost = error
                self._forget(item, {})
                return None

    def _finish(self, item: _Item, result: _Result, *, takes_next: bool) -> tuple[_Item, str] | None:
        with self._guard:
            lines = list(item.lines)
        return self._forget(item, self._source.finish(item.item_id, result, lines, takes_next=takes_next))

    def _forget(self, item: _Item, following: Mapping[str, str]) -> tuple[_Item, str] | None:
        """Remove an item that has ended; the one that follows it takes its place at the same moment."""
        with self._guard:
            del self._running[item.item_id]
            self._ran += 1
            for item_id, text in following.items():
                self._running[item_id] = _Item(item_id, item.slot)
                return self._running[item_id], text
        return None

    def _run_safely(self, item: _Item, text: str) -> _Result:
        request: _Request | None = None
        try:
            request = self._kind.read(text)
            item.lock_file = self._kind.lock_file_of(request)
            # One pool for each place, not for each item: Spark keeps pools for good.
            self._spark.setLocalProperty(POOL, f"lake-{item.slot}")
            self._spark.addJobTag(item.item_id)
            try:
                with capture_lines(partial(self._keep_line, item)):
                    return self._kind.run(request, lambda: item.cancelled)
            finally:
                self._spark.removeJobTag(item.item_id)
        except Exception as error:  # noqa: BLE001 - the outermost loop of an item's thread: the others go on
            return self._kind.fail(request, f"{type(error).__name__}: {error}")

    def _keep_line(self, item: _Item, line: str) -> None:
        with self._guard:
            item.lines.append(line)

    def _count(self) -> int:
        with self._guard:
            return len(self._running)

    def _wait(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()


def keep_attributes(owner: type, kept: tuple[type, ...]) -> None:
    """Have the objects of a class find an attribute once, if it is of one of some kinds (`prepare_java_names`)."""
    find = owner.__getattr__  # type: ignore[attr-defined]

    def find_once(self: Any, name: str) -> Any:
        found = find(self, name)
        if isinstance(found, kept):
            self.__dict__[name] = found
        return found

    owner.__getattr__ = find_once  # type: ignore[attr-defined]


def failed_result(request: JobRequest | None, message: str) -> JobResult:
    """Return the result of an item that could not be run.

    Of a request that this code cannot read it says why for every service: its task finds its own.
    """
    services = tuple(Service) if request is None else [service.service for service in request.services]
    message = message[: 1000 if request is not None else 300]
    return JobResult(
        "" if request is None else request.job_id,
        tuple(
            ServiceResult(service, Outcome.FAILED, failure_kind=FailureKind.OTHER, message=message)
            for service in services
        ),
    )
