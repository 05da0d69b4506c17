"""What a service of a table will cost and bring, by what it cost and brought before. Pure.

Everything comes from a decision's evidence (commit metadata, never a listing of data files) and from the records of
past runs. The table's own records of the service count first; with few of them, those of all tables; with none, a
documented prior. Each figure has an interval, from the errors that the same line makes on the records.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import backoff
from airflow_lake_provider.job_contract import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from airflow_lake_provider.planner.rules import Decision, Evidence

MIB = 1 << 20
GIB = 1 << 30
NEWEST = 20
"""So many of a table's newest records of a service predict the next one."""
MIN_OWN = 3
"""With fewer records of its own, a table's figures are those of all tables, corrected by its own."""
PRIOR_START_S = 15.0
"""Prior: what a job takes before it works, seconds."""
PRIOR_BYTES_PER_S = 20 * MIB
"""Prior: bytes that one job reads or rewrites per second."""
PRIOR_ITEM_S = 0.05
"""Prior: seconds for each file or instant."""
PRIOR_FACTOR = 4.0
"""The interval of a figure that no record supports: from a fourth of it to four times as much."""
SURE = 0.8
"""The share of outcomes that an interval is meant to hold."""
MIN_ERROR = 0.02
"""No interval is narrower: a figure that was always met is not met to the last digit."""


# --- How much work a decision is, by its evidence


@dataclass(frozen=True, slots=True)
class Work:
    """The size of one run. `items` are files or instants."""

    bytes: float = 0.0
    items: float = 1.0


def work_of(service: Service, evidence: Evidence) -> Work:
    """Return how much work a due decision is; what its evidence does not show counts as nothing."""
    number = _reader(evidence)
    if service is Service.COMPACTION:
        groups = number("merged_groups")
        base_bytes = number("merged_base_bytes")
        unsized = min(number("unsized_file_groups"), groups)
        # A file group whose base file is older than the active timeline counts like the average of the others.
        sized = groups - unsized
        base_bytes += unsized * (base_bytes / sized if sized else 0.0)
        return Work(base_bytes + number("log_bytes"), max(1.0, groups + number("log_files")))
    if service is Service.LOGCOMPACTION:
        return Work(number("log_bytes"), max(1.0, number("log_files")))
    if service is Service.CLUSTERING:
        return Work(number("all_small_file_bytes"), max(1.0, number("all_small_files")))
    names = {
        Service.CLEAN: ("freed_files",),
        Service.ARCHIVE: ("surplus_writes",),
        Service.METACOMPACTION: ("writes_since",),
        Service.ROLLBACK: ("overdue_writes", "pending_rollbacks"),
    }
    # A clean deletes files and rewrites none: their bytes cost nothing.
    return Work(0.0, max(1.0, sum(map(number, names.get(service, ())))))


def _reader(evidence: Evidence) -> Callable[[str], float]:
    def number(name: str) -> float:
        value = evidence.get(name)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0

    return number


# --- What it brings


@dataclass(frozen=True, slots=True)
class Benefit:
    """What a run brings, as far as metadata shows it."""

    log_bytes: float = 0.0
    """Bytes of log files that a reader no longer merges."""
    files: float = 0.0
    """Files that a reader no longer opens, or that no longer occupy storage."""
    instants: float = 0.0
    """Instants that leave the active timeline, or that nothing waits for any more."""
    freed_bytes: float = 0.0

    @property
    def points(self) -> float:
        """One figure to compare by: a point is 64 MiB of log, 10 files, 10 instants, or 1 GiB of storage."""
        of_files = self.files / 10 + self.instants / 10
        return max(MIN_POINTS, self.log_bytes / (64 * MIB) + of_files + self.freed_bytes / GIB)


MIN_POINTS = 0.01
"""What is due has some benefit, also where its evidence shows none."""
TARGET_FILE_BYTES = 120 * MIB
"""About how large a clustered base file becomes (Hudi's `hoodie.parquet.max.file.size`)."""


def benefit_of(service: Service, evidence: Evidence) -> Benefit:
    """Return what a due decision brings when it is done, by its evidence."""
    number = _reader(evidence)
    if service is Service.COMPACTION:
        return Benefit(log_bytes=number("log_bytes"), files=number("log_files"))
    if service is Service.LOGCOMPACTION:
        return Benefit(files=max(0.0, number("log_files") - number("merged_groups")))
    if service is Service.CLUSTERING:
        small = number("all_small_files")
        after = math.ceil(number("all_small_file_bytes") / TARGET_FILE_BYTES)
        return Benefit(files=max(0.0, small - after))
    if service is Service.CLEAN:
        return Benefit(files=number("freed_files"), freed_bytes=number("freed_bytes"))
    if service is Service.ARCHIVE:
        return Benefit(instants=number("surplus_writes"))
    if service is Service.METACOMPACTION:
        return Benefit(files=number("writes_since"))
    if service is Service.ROLLBACK:
        return Benefit(instants=number("overdue_writes") + number("pending_rollbacks"))
    return Benefit()


# --- Records, and what they say about the next run


@dataclass(frozen=True, slots=True)
class Operation:
    """The record of a run that has ended: how much work it seemed to be, and what it was. None is not known."""

    work: Work
    seconds: float
    bytes: float | None = None
    """Bytes that it wrote."""
    files: float | None = None
    """Files that it replaced or deleted."""
    points: float = 0.0
    """What its decision promised (`Benefit.points`)."""
    expected_files: float = 0.0
    """Files that its decision promised."""
    ended_ms: int = 0
    found_nothing: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """A figure and the interval that holds about `SURE` of the outcomes."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Price:
    """What a run is expected to cost and bring."""

    seconds: Range
    """Of its Spark job."""
    bytes: Range
    """That it writes."""
    benefit: Benefit
    cores: int = 1
    basis: str = ""
    """What the figures rest on, in words."""
    is_proven: bool = False
    """Whether they rest on the table's own runs alone; fewer than `MIN_OWN` move the general figures a part of the way.
    """

    @property
    def core_s(self) -> float:
        """Core seconds: what a budget is spent in."""
        return max(1.0, self.seconds.value) * self.cores

    def to_dict(self) -> dict[str, Any]:
        """Return the shape that is stored with the run, and shown."""
        return {
            "seconds": _rounded(self.seconds, 1),
            "bytes": _rounded(self.bytes, 0),
            "benefit": {name: round(value, 1) for name, value in asdict(self.benefit).items() if value},
            "points": round(self.benefit.points, 3),
            "cores": self.cores,
            "basis": self.basis,
        }


def _rounded(found: Range, digits: int) -> list[float]:
    return [round(value, digits) for value in (found.value, found.low, found.high)]


def predict(decision: Decision, own: Sequence[Operation], fleet: Sequence[Operation], cores: int = 1) -> Price:
    """Return the price of a due decision. `own` and `fleet` are records of the service, the newest first.

    `own` are the table's, `fleet` those of all tables. A run that found nothing to do says nothing about the price.
    """
    service = decision.service
    evidence = decision.evidence
    work = work_of(service, evidence)
    promised = benefit_of(service, evidence)
    own = [found for found in own if not found.found_nothing][:NEWEST]
    fleet = [found for found in fleet if not found.found_nothing]
    seconds = _estimate(work, _samples(own, _seconds), _samples(fleet, _seconds), _BY_EFFORT)
    size = _estimate(work, _samples(own, _bytes), _samples(fleet, _bytes), _BY_BYTES)
    share = _kept_share(own) if len(own) >= MIN_OWN else 1.0
    scaled = Benefit(**{name: value * share for name, value in asdict(promised).items()})
    return Price(seconds, size, scaled, cores, _describe_basis(len(own), len(fleet)), len(own) >= MIN_OWN)


def _describe_basis(own: int, fleet: int) -> str:
    if own >= MIN_OWN:
        return f"the table's last {own} runs of it"
    of_all = f"{fleet} runs of it on all tables" if fleet else "the documented prior"
    return f"{of_all}, and {own} of this table" if own else of_all


def _seconds(found: Operation) -> float | None:
    return found.seconds or None


def _bytes(found: Operation) -> float | None:
    return found.bytes


def _effort_s(work: Work) -> float:
    # Bytes and files on one axis, as the prior weighs them; how fast a table is, its line says.
    return work.bytes / PRIOR_BYTES_PER_S + work.items * PRIOR_ITEM_S


@dataclass(frozen=True, slots=True)
class _Axis:
    """The size of a run on one axis, and what the prior starts with there; its slope is 1."""

    size_of: Callable[[Work], float]
    start: float


_BY_EFFORT = _Axis(_effort_s, PRIOR_START_S)
_BY_BYTES = _Axis(lambda work: work.bytes, 0.0)
Sample = tuple[Work, float]


def _samples(records: Iterable[Operation], read: Callable[[Operation], float | None]) -> list[Sample]:
    return [(found.work, value) for found in records if (value := read(found)) is not None]


def _estimate(work: Work, own: list[Sample], fleet: list[Sample], axis: _Axis) -> Range:
    if len(own) >= MIN_OWN:
        line = _line(own, axis)
        return _range(line(work), [_log_error(made, line(of)) for of, made in own])

    def prior(of: Work) -> float:
        return axis.start + axis.size_of(of)

    general = _line(fleet, axis) if len(fleet) >= MIN_OWN else prior
    value = general(work)
    if own:
        # Few records shift the general figure a part of the way.
        shift = median(_log_error(made, general(of)) for of, made in own)
        value *= math.exp(shift * len(own) / (len(own) + 1))
    if len(fleet) < MIN_OWN:
        return Range(value, value / PRIOR_FACTOR, value * PRIOR_FACTOR)
    return _range(value, [_log_error(made, general(of)) for of, made in fleet])


def _range(value: float, errors: list[float]) -> Range:
    ordered = sorted(errors)
    low, high = (_quantile(ordered, share) for share in ((1 - SURE) / 2, (1 + SURE) / 2))
    # The fewer records, the wider: the line was laid through them, so their own spread shows too little.
    wider = (len(ordered) + 3) / len(ordered)
    low, high = min(-MIN_ERROR, low * wider), max(MIN_ERROR, high * wider)
    return Range(value, value * math.exp(low), value * math.exp(high))


def _quantile(ordered: list[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def _log_error(made: float, predicted: float) -> float:
    return math.log(max(made, 1e-3) / max(predicted, 1e-3))


MAX_OF_LINE = 40


def _line(samples: Sequence[Sample], axis: _Axis) -> Callable[[Work], float]:
    """Return the line through samples that outliers do not bend (Theil and Sen): what starts, and what work adds.

    More work is never cheaper, and nothing costs less than half of the cheapest sample.
    """
    points = [(axis.size_of(work), made) for work, made in samples[:MAX_OF_LINE]]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if a[0] != b[0]]
    slope = max(0.0, median(slopes)) if slopes else 0.0
    start = median(made - slope * size for size, made in points)
    least = min(made for _, made in points) / 2

    def at(work: Work) -> float:
        return max(least, start + slope * axis.size_of(work))

    return at


# --- What work brought: the share of its promise, and a pause for a service that brings little


def _kept_share(own: Sequence[Operation]) -> float:
    shares = [found.files / found.expected_files for found in own if found.files is not None and found.expected_files]
    return min(2.0, max(0.05, median(shares))) if len(shares) >= MIN_OWN else 1.0


LITTLE = 0.1
"""A run that brought less than this share of its promise brought little."""
COOLDOWN_MS = 15 * 60_000
MAX_COOLDOWN_MS = 24 * 3_600_000


def cooldown_until_ms(own: Sequence[Operation]) -> int:
    """Return until when a service that brought little is not repeated, ms since the epoch; 0: it may be at once.

    `own` are the table's records of the service, the newest first. The pause doubles with each such run in a row.
    """
    in_a_row = 0
    for found in own:
        if not _brought_little(found):
            break
        in_a_row += 1
    if not in_a_row:
        return 0
    return own[0].ended_ms + int(backoff(COOLDOWN_MS, in_a_row, MAX_COOLDOWN_MS))


def _brought_little(found: Operation) -> bool:
    if found.found_nothing:
        return True
    if found.files is None or not found.expected_files:
        return False
    return found.files < LITTLE * found.expected_files


# --- How many cores a job takes, by its Spark settings

_NO_CONF: Mapping[str, str] = MappingProxyType({})


def cores_of(spark_conf: Mapping[str, str] = _NO_CONF) -> int:
    """Return how many cores the executors of a job take at most, by its settings; 1 when they name none."""
    executors = _whole(spark_conf.get("spark.dynamicAllocation.maxExecutors")) or _whole(
        spark_conf.get("spark.executor.instances")
    )
    each = _whole(spark_conf.get("spark.executor.cores"))
    total = _whole(spark_conf.get("spark.cores.max"))
    if executors:
        cores = executors * (each or 1)
        return min(cores, total) if total else cores
    return total or each or 1


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0
