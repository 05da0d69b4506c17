"""What the routes work with, in one value that the app carries."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Header, Request

from airflow_lake_provider.config.access import Grant, Right, TokensSource
from airflow_lake_provider.errors import TableUnknownError, TooManyNoticesError
from airflow_lake_provider.http import token_of_bearer
from airflow_lake_provider.manager.api.store_threads import StoreThreads
from airflow_lake_provider.manager.db.work import WorkQueue
from airflow_lake_provider.manager.reports.lake_metrics import LakeMetrics
from airflow_lake_provider.manager.reports.reports import Reports
from airflow_lake_provider.manager.supervision.reader_holds import HoldKeeper
from airflow_lake_provider.metrics import REFUSED_NOTICES, NoMetrics
from airflow_lake_provider.request_bounds import SMALL_SHARE, Rate, Rates

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from airflow_lake_provider.config.settings import LakeSettings
    from airflow_lake_provider.config.tables_source import TablesSource
    from airflow_lake_provider.manager.db.leases import Executors
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.rows import Mark, Notice
    from airflow_lake_provider.manager.db.work import ApplicationGateway
    from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
    from airflow_lake_provider.manager.runs.airflow_runs import InstanceGateway
    from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
    from airflow_lake_provider.manager.supervision.repair_round import RepairRound
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.planner.table_view import TableViewCache
    from airflow_lake_provider.timeline_server.server import TimelineServer


log = logging.getLogger(__name__)

_MAX_COUNTED = 1000
_MAX_SENDERS = 50
_MAX_SHOWN = 5
_CAUSES = {
    401: "a writer's key is missing or wrong",
    403: "the table lies outside [lake] allowed_roots or the token's roots, or the token has no right 'notify'",
    408: "the body did not arrive in time",
    413: "the body is larger than [lake] max_notice_bytes",
    429: "a token, or all together, send more than [lake] notices_per_s or notices_at_once",
}


class RefusedNotices:
    """Counts the notices that this process refused, per status and sender; safe from any thread."""

    def __init__(self, metrics: Metrics | None = None, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics if metrics is not None else NoMetrics()
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._times_s: dict[int, dict[str, deque[float]]] = {}
        self._logged_s: dict[int, float] = {}

    def record(self, status: int, reason: str, sender: str = "") -> None:
        """Count a refused notice of a sender and log its reason, at most once a minute and status."""
        now_s = self._monotonic_s()
        self._metrics.incr(REFUSED_NOTICES)
        with self._lock:
            senders = self._times_s.setdefault(status, {})
            # Addresses are without number.
            name = sender if sender in senders or len(senders) < _MAX_SENDERS else "others"
            senders.setdefault(name, deque(maxlen=_MAX_COUNTED)).append(now_s)
            is_logged = now_s - self._logged_s.get(status, float("-inf")) >= 60
            if is_logged:
                self._logged_s[status] = now_s
        if is_logged:
            log.warning("the manager refused a notice of %s with %d: %s", sender or "a writer", status, reason[:500])

    def find_problems(self, *, names: bool = False) -> tuple[str, ...]:
        """Return one sentence for each status of the last hour, with `names` also which senders.

        It names no table, and without `names` no token: `/health` needs none.
        """
        since_s = self._monotonic_s() - 3600
        with self._lock:
            counts = {
                status: Counter({name: sum(time_s > since_s for time_s in times) for name, times in senders.items()})
                for status, senders in self._times_s.items()
            }
        return tuple(
            f"{found.total()}{' or more' if max(found.values()) == _MAX_COUNTED else ''} notices were refused with "
            f"{status} in the last hour{_describe_senders(found) if names else ''} "
            f"({_CAUSES.get(status, 'they cannot be understood')}); this API server's log names the last ones"
            for status, found in sorted(counts.items())
            if found.total()
        )


def _describe_senders(found: Counter[str]) -> str:
    most = [f"{name or 'a writer'} ({count})" for name, count in found.most_common(_MAX_SHOWN) if count]
    rest = sum(count > 0 for count in found.values()) - len(most)
    return f", sent by {', '.join(most)}{f' and {rest} others' if rest else ''}"


UNIT_BYTES = 4 * 1024 * 1024
BURST_S = 10.0
ALL_TOKENS = 4
NEW_PER_S = 5.0
NEW_BURST = 500.0
WAIT_S = 10.0
MAX_WAITING = 1000


@dataclass(eq=False, slots=True)
class _Waiter:
    name: str
    units: int
    event_loop: asyncio.AbstractEventLoop
    admitted: asyncio.Future[None]


class NoticeLimits:
    """Bounds notices by their rate and by how many are in work, for each token and for all; safe from any event loop.

    A notice that finds no place waits for one, in the order of arrival: a burst of commits is no flood, and Hudi's
    callback sends a notice once. A token at its own bound never keeps the others waiting.
    """

    def __init__(
        self, per_s: float, at_once: int, monotonic_s: Callable[[], float] = time.monotonic, wait_s: float = WAIT_S
    ) -> None:
        self._per_s = per_s
        self._at_once = at_once
        self._of_one = max(1, at_once // 2)
        self._monotonic_s = monotonic_s
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()
        self._rates = Rates()
        self._waiting: deque[_Waiter] = deque()

    @asynccontextmanager
    async def admit(self, name: str, size_bytes: int = 0) -> AsyncIterator[None]:
        """Wait for a place. Raises TooManyNoticesError: at once for the rate, otherwise after ten seconds."""
        units = min(self._of_one, 1 + size_bytes // UNIT_BYTES)
        waiter = self._enter(name, units)
        if waiter is not None:
            await self._wait(waiter)
        try:
            yield
        finally:
            self._leave(name, units)

    def _enter(self, name: str, units: int) -> _Waiter | None:
        with self._lock:
            self._count(name)
            if not self._waiting_of(name) and self._fits(name, units):
                self._used[name] += units
                return None
            if self._waiting_of(name) >= MAX_WAITING:
                raise TooManyNoticesError(f"{MAX_WAITING} notices of token {name!r} wait already", 5)
            event_loop = asyncio.get_running_loop()
            waiter = _Waiter(name, units, event_loop, event_loop.create_future())
            self._waiting.append(waiter)
            return waiter

    def require_new(self, name: str) -> None:
        """Count a table that is not registered yet: each costs an evaluation, and that costs calls of its store."""
        with self._lock:
            refused = self._rates.take(self._monotonic_s(), Rate(f"new tables of {name}", NEW_PER_S, NEW_BURST))
        if refused is not None:
            raise TooManyNoticesError(
                f"token {name!r} announces more than {NEW_PER_S:.0f} new tables per second; registered ones are "
                "accepted"
            )

    def _count(self, name: str) -> None:
        """Take one from the token's rate and from that of all; a refused one takes nothing."""
        rates = [
            Rate(key, per_s, per_s * BURST_S) for key, per_s in ((name, self._per_s), ("", self._per_s * ALL_TOKENS))
        ]
        refused = self._rates.take(self._monotonic_s(), *rates)
        if refused is not None:
            whose = f"token {name!r} sends" if refused.name else "all tokens together send"
            raise TooManyNoticesError(
                f"{whose} more than {refused.per_s:,.0f} notices per second ([lake] notices_per_s)"
            )

    def _fits(self, name: str, units: int) -> bool:
        mine = self._used[name] + units
        # Two tokens of one sender could have all places, so those with many notices leave some for those with few.
        left_free = self._at_once // 4 if mine > max(1, self._at_once // SMALL_SHARE) else 0
        return mine <= self._of_one and self._used.total() + units <= self._at_once - left_free

    def _waiting_of(self, name: str) -> int:
        return sum(waiter.name == name for waiter in self._waiting)

    async def _wait(self, waiter: _Waiter) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                await waiter.admitted
        except BaseException as error:
            with self._lock:
                is_waiting = waiter in self._waiting
                if is_waiting:
                    self._waiting.remove(waiter)
            if not is_waiting:  # it got its place just now, and would keep it
                self._leave(waiter.name, waiter.units)
            if isinstance(error, TimeoutError):
                raise TooManyNoticesError(
                    f"{self._at_once} notices are in work, or {self._of_one} of token {waiter.name!r} "
                    "([lake] notices_at_once)",
                    5,
                ) from error
            raise

    def _leave(self, name: str, units: int) -> None:
        with self._lock:
            self._used[name] -= units
            for waiter in list(self._waiting):
                if self._used.total() >= self._at_once:
                    break
                if self._fits(waiter.name, waiter.units):
                    self._used[waiter.name] += waiter.units
                    self._waiting.remove(waiter)
                    waiter.event_loop.call_soon_threadsafe(_set, waiter.admitted)


def _set(admitted: asyncio.Future[None]) -> None:
    if not admitted.done():
        admitted.set_result(None)


@dataclass(frozen=True, slots=True)
class ManagerServices:
    """Settings, tokens, registry, executors, work, loop, shared timelines, views and sweep of one process."""

    settings: LakeSettings
    registry: Registry
    executors: Executors
    loop: ManagerLoop
    timeline_server: TimelineServer
    tables: TablesSource
    views: TableViewCache
    instance_gateway: InstanceGateway
    deadlines: DeadlineSweep
    repairs: RepairRound
    refusals: RefusedNotices = field(default_factory=RefusedNotices)
    applications: ApplicationGateway | None = None
    work: WorkQueue = field(init=False)
    tokens: TokensSource = field(init=False)
    limits: NoticeLimits = field(init=False)
    reports: Reports = field(init=False)
    metrics: LakeMetrics = field(init=False)
    holds: HoldKeeper = field(init=False)
    store_threads: StoreThreads = field(init=False)

    def __post_init__(self) -> None:
        """Read the tokens that the settings name, set the limits of notices, and make the reports and the metrics."""
        object.__setattr__(self, "tokens", TokensSource.of(self.settings))
        limits = NoticeLimits(self.settings.notices_per_s, self.settings.notices_at_once)
        object.__setattr__(self, "limits", limits)
        object.__setattr__(self, "store_threads", StoreThreads())
        object.__setattr__(self, "holds", HoldKeeper(self.registry, self.tables.load, self.views))
        work = WorkQueue(self.registry, self.settings.warm_patience_s, self.applications)
        object.__setattr__(self, "work", work)
        loop = self.loop
        parts = (self.registry, self.tables, self.views, self.instance_gateway)
        start = loop.evaluation.run_scheduler, loop.evaluation.admit
        reports = Reports(*parts, *start, loop.find_lake_dags, lambda: self.find_problems())
        object.__setattr__(self, "reports", reports)
        of_lake = LakeMetrics(
            self.registry,
            self.tables.load,
            self.instance_gateway,
            reports.find_problems,
            lambda now_ms: loop.find_lake_dags().sweep_age_s(now_ms),
        )
        object.__setattr__(self, "metrics", of_lake)

    def find_problems(self, sees: Callable[[str], bool] = lambda _path: True, *, names: bool = True) -> list[str]:
        """Return what is wrong with this process: its loop, stores that hang, notices that it refused, and of whom."""
        return [*self.loop.find_problems(sees), *self.refusals.find_problems(names=names)]

    def notify(self, name: str, notice: Notice) -> Mark:
        """Make a token's notice durable. Raises TooManyNoticesError for a new table too many."""
        try:
            return self.loop.notify(notice, may_register=False)
        except TableUnknownError:
            self.limits.require_new(name)
            return self.loop.notify(notice)


async def services_of(request: Request) -> ManagerServices:
    """Return the services of the app that answers this request; they are opened on first use."""
    return services_of_app(request.app)


def services_of_app(app: Any) -> ManagerServices:
    """Return the services of an app; they are opened on first use."""
    open_services: Callable[[], ManagerServices] = app.state.open_services
    return open_services()


# --- The callers of the routes for tasks and people (`Authorization: Bearer`)

Services = Annotated[ManagerServices, Depends(services_of)]
Bearer = Annotated[str | None, Header(alias="Authorization")]


async def check_reader(services: Services, authorization: Bearer = None) -> Grant:
    """Refuse a caller without a token that may read."""
    return _authorise(services, authorization, Right.READ)


async def check_operator(services: Services, authorization: Bearer = None) -> Grant:
    """Refuse a caller without a token that may operate."""
    return _authorise(services, authorization, Right.OPERATE)


async def check_holder(services: Services, authorization: Bearer = None) -> Grant:
    """Refuse a caller without a token that may hold files for readers."""
    return _authorise(services, authorization, Right.HOLD)


Reader = Annotated[Grant, Depends(check_reader)]
Holder = Annotated[Grant, Depends(check_holder)]
Operator = Annotated[Grant, Depends(check_operator)]


def check_read_table(services: Services, reader: Reader, table_id: str) -> None:
    """Refuse a caller that may not read this table, as if there were none."""
    _require_table(services, reader, table_id)


def check_hold_table(services: Services, holder: Holder, table_id: str) -> None:
    """Refuse a caller that may not hold files of this table, as if there were none."""
    _require_table(services, holder, table_id)


def check_operate_table(services: Services, operator: Operator, table_id: str) -> None:
    """Refuse a caller that may not operate this table, as if there were none."""
    _require_table(services, operator, table_id)


def check_operate_all(operator: Operator) -> None:
    """Refuse a caller that may not operate every table: a standing application serves the tables of all teams."""
    operator.require_all_roots("work for standing applications")


def _authorise(services: ManagerServices, authorization: str | None, right: Right) -> Grant:
    given = token_of_bearer(authorization)
    return services.tokens.authorise(given, right, where="header Authorization", option="service_tokens")


def _require_table(services: ManagerServices, caller: Grant, table_id: str) -> None:
    def find_base_path(wanted: str) -> str | None:
        row = services.registry.find(wanted)
        return None if row is None else str(row.base_path)

    caller.require_table(table_id, find_base_path)
