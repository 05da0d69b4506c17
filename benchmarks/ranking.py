"""How much of the best possible benefit does each order get out of a budget that does not suffice for all that is due?

200 simulated tables with a history of 30 runs of each service: sizes, commit intervals, speeds of their stores and
noise of their runs are drawn from a seed, with the spread of real lakes (a few large tables, many small ones). The
seeds are not those that the weights were chosen with (1 to 10). All of it is due at once. Each order gets the same
evidence and history; its list is run, at the true costs, until the budget (10, 30 and 60 % of what all of it costs) is
spent, leaving out what no longer fits.

`ours` is the provider's own price (`planner.price`) and order (`planner.ranking`), ageing included; `fifo` is the order
of becoming due; `longest` puts the table first whose last run is longest ago (Amoro's balanced policy); `autocomp` is
AutoComp's published formula (OpenHouse): cost in GB hours by 2 MB/s and half a GB hour to start, gain in files, both
min-max normalised, gain weighted 0.7 and cost 0.3, in its greedy selection. The divisor is the exact 0/1 knapsack by
dynamic programming, which knows each true cost and benefit. The benefit is the provider's own (points, weighted by
class), which AutoComp does not aim at; so `files` gives the same shares when only files count, AutoComp's own aim,
of which the provider's order knows nothing. All figures are means over the drawn lakes.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.price import GIB, MIB, Operation, benefit_of, predict, work_of
from airflow_lake_provider.planner.ranking import WEIGHTS, density_of, rank_ms
from airflow_lake_provider.planner.rules import Decision, Verdict, urgency_of

BUDGETS = (10, 30, 60)
HISTORY = 30
STEPS = 20_000
"""Into so many steps the knapsack divides its budget: finer than half a core second of the largest lake's."""
HOUR_MS = 3_600_000
GB_HOUR_START, GB_MEMORY, REWRITE_BYTES_PER_S, TARGET_BYTES = 0.5, 2.0, 2 * MIB, 502 * MIB
GAIN_WEIGHT, COST_WEIGHT = 0.7, 0.3


@dataclass(frozen=True)
class Table:
    """One table of the lake: its size, its store's speed, its runs' noise, and how much of a promise it keeps."""

    name: str
    groups: int
    group_bytes: float
    log_bytes_per_commit: float
    start_s: float
    bytes_per_s: float
    item_s: float
    noise: float
    kept: float
    commit_interval_s: float


@dataclass
class Candidate:
    """One due service: what is known of it, and what it would truly cost and bring."""

    decision: Decision
    own: list[Operation]
    since_ms: int
    last_ms: int
    cost_s: float
    benefit: float
    files: float = 0.0
    fleet: list[Operation] = field(default_factory=list)


def draw_table(rng: random.Random, number: int) -> Table:
    """Draw a table: log-normal sizes, so that the largest tenth holds most of the bytes."""
    groups = max(1, round(rng.lognormvariate(2.5, 1.2)))
    group_bytes = min(120 * MIB, rng.lognormvariate(3.0, 1.0) * MIB)
    return Table(
        name=f"t{number}",
        groups=groups,
        group_bytes=group_bytes,
        log_bytes_per_commit=groups * group_bytes * rng.uniform(0.005, 0.1),
        start_s=rng.uniform(10, 25),
        bytes_per_s=rng.lognormvariate(3.0, 0.6) * MIB,
        item_s=rng.lognormvariate(-3.0, 0.7),
        noise=rng.uniform(0.05, 0.35),
        kept=rng.choice([1.0, 1.0, 1.0, 0.7, 0.3]),
        commit_interval_s=rng.lognormvariate(7.0, 1.3),
    )


def draw_evidence(rng: random.Random, table: Table, service: Service) -> dict[str, int]:
    """Draw what metadata shows when a service of the table is due."""
    commits = round(rng.lognormvariate(2.0, 0.6)) + 3
    touched = max(1, round(table.groups * rng.uniform(0.1, 1.0)))
    log_bytes = table.log_bytes_per_commit * commits * rng.uniform(0.6, 1.4)
    if service is Service.COMPACTION:
        return {
            "delta_commits": commits, "log_files": touched * max(1, commits // 2), "log_bytes": round(log_bytes),
            "merged_groups": touched, "merged_base_bytes": round(touched * table.group_bytes), "unsized_file_groups": 0,
        }  # fmt: skip
    if service is Service.CLUSTERING:
        small = max(2, touched * 3)
        return {"all_small_files": small, "all_small_file_bytes": round(small * table.group_bytes / 6)}
    if service is Service.CLEAN:
        files = touched * max(1, commits // 4)
        return {"writes_since_clean": commits, "freed_files": files, "freed_bytes": round(files * table.group_bytes)}
    return {"active_writes": 30 + commits, "surplus_writes": 10 + commits}


def run(rng: random.Random, table: Table, decision: Decision, ended_ms: int) -> tuple[Operation, float]:
    """Return what a run of the decision is, as its record and as its true benefit in points."""
    work = work_of(decision.service, decision.evidence)
    slow = 3.0 if rng.random() < 0.03 else 1.0
    seconds = table.start_s + work.bytes / table.bytes_per_s + work.items * table.item_s
    promised = benefit_of(decision.service, decision.evidence)
    kept = min(1.0, table.kept * rng.lognormvariate(0, 0.1)) if decision.service is Service.CLEAN else 1.0
    operation = Operation(
        work=work,
        seconds=seconds * rng.lognormvariate(0, table.noise) * slow,
        bytes=work.bytes * rng.uniform(0.85, 1.0),
        files=round(work.items * kept),
        points=promised.points,
        expected_files=work.items if promised.files else 0.0,
        ended_ms=ended_ms,
    )
    points = type(promised)(*(value * kept for value in (
        promised.log_bytes, promised.files, promised.instants, promised.freed_bytes
    ))).points  # fmt: skip
    return operation, points


def draw_lake(seed: int, tables: int) -> list[Candidate]:
    """Draw a lake with its history, and return what is due in it."""
    rng = random.Random(seed)
    found: list[Candidate] = []
    fleet: dict[Service, list[Operation]] = {}
    for number in range(tables):
        table = draw_table(rng, number)
        service = rng.choices(
            [Service.COMPACTION, Service.CLEAN, Service.ARCHIVE, Service.CLUSTERING], [0.5, 0.25, 0.15, 0.1]
        )[0]
        own = []
        for at in range(rng.choice([0, 2, HISTORY, HISTORY, HISTORY, HISTORY])):
            past = Decision(service, Verdict.DUE, "due", evidence=draw_evidence(rng, table, service))
            own.append(run(rng, table, past, at)[0])
        own.reverse()
        decision = Decision(service, Verdict.DUE, "due", key_instant="1", evidence=draw_evidence(rng, table, service))
        outcome, points = run(rng, table, decision, 0)
        weighted = WEIGHTS[urgency_of(decision, TablePolicy())] * points
        # Under a tight budget what is due has waited for up to hours, longer where a table is rarely written.
        since_ms = -round(min(rng.expovariate(1 / 3600), 6 * 3600) * 1000)
        last_ms = since_ms - round(table.commit_interval_s * rng.uniform(1, 5) * 1000)
        fleet.setdefault(service, []).extend(own[:3])
        benefit = benefit_of(service, decision.evidence)
        saved = benefit.files + benefit.instants
        found.append(Candidate(decision, own, since_ms, last_ms, outcome.seconds, weighted, saved))
    for candidate in found:
        candidate.fleet = fleet.get(candidate.decision.service, [])
    return found


# --- The orders


def order_ours(found: Sequence[Candidate]) -> list[Candidate]:
    """The provider's order."""

    def key(one: Candidate) -> int:
        price = predict(one.decision, one.own, one.fleet)
        return rank_ms(one.since_ms, density_of(price, urgency_of(one.decision, TablePolicy())))

    return sorted(found, key=key)


def order_fifo(found: Sequence[Candidate]) -> list[Candidate]:
    """The order of becoming due."""
    return sorted(found, key=lambda one: one.since_ms)


def order_longest(found: Sequence[Candidate]) -> list[Candidate]:
    """The table first that was served longest ago."""
    return sorted(found, key=lambda one: one.last_ms)


def order_autocomp(found: Sequence[Candidate]) -> list[Candidate]:
    """AutoComp's: files saved and GB hours, each normalised between its least and greatest."""
    costs, gains = [], []
    for one in found:
        evidence = {name: float(value or 0) for name, value in one.decision.evidence.items()}
        files = evidence.get("log_files", 0) + evidence.get("all_small_files", 0) + evidence.get("freed_files", 0)
        files += evidence.get("surplus_writes", 0)
        size = work_of(one.decision.service, one.decision.evidence).bytes
        after = -(-size // TARGET_BYTES) if size else 0
        gains.append(max(0.0, files - after))
        costs.append(size / REWRITE_BYTES_PER_S / 3600 * GB_MEMORY + GB_HOUR_START)

    def normalised(values: list[float]) -> list[float]:
        low, high = min(values), max(values)
        return [(value - low) / (high - low) if high > low else 0.0 for value in values]

    scores = [
        GAIN_WEIGHT * gain - COST_WEIGHT * cost for gain, cost in zip(normalised(gains), normalised(costs), strict=True)
    ]
    return [one for _, one in sorted(zip(scores, found, strict=True), key=lambda pair: -pair[0])]


ORDERS: dict[str, Callable[[Sequence[Candidate]], list[Candidate]]] = {
    "ours": order_ours,
    "fifo": order_fifo,
    "longest": order_longest,
    "autocomp": order_autocomp,
}


def spend(ordered: Sequence[Candidate], budget_s: float) -> tuple[float, float]:
    """Return the benefit, and the files, of what runs in order at its true cost, without what no longer fits."""
    left, benefit, files = budget_s, 0.0, 0.0
    for one in ordered:
        if one.cost_s <= left:
            left -= one.cost_s
            benefit += one.benefit
            files += one.files
    return benefit, files


def knapsack(found: Sequence[Candidate], gains: Sequence[float], budget_s: float) -> float:
    """Return the greatest benefit that fits: costs are rounded down to a step, so that it is never too small."""
    step_s = budget_s / STEPS
    best = [0.0] * (STEPS + 1)
    for one, gain in zip(found, gains, strict=True):
        weight = int(one.cost_s / step_s)
        for at in range(STEPS, weight - 1, -1):
            with_it = best[at - weight] + gain
            if with_it > best[at]:
                best[at] = with_it
    return best[STEPS]


def main() -> int:
    """Draw lakes, let each order spend each budget, print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lakes", type=int, default=10)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--seed", type=int, default=101)
    options = parser.parse_args()
    shares: dict[tuple[int, str], list[float]] = {}
    for number in range(options.lakes):
        found = draw_lake(options.seed + number, options.tables)
        total_s = sum(one.cost_s for one in found)
        lists = {name: order(found) for name, order in ORDERS.items()}
        for percent in BUDGETS:
            budget_s = total_s * percent / 100
            best = knapsack(found, [one.benefit for one in found], budget_s)
            most_files = knapsack(found, [one.files for one in found], budget_s)
            for name, ordered in lists.items():
                benefit, files = spend(ordered, budget_s)
                shares.setdefault((percent, name), []).append(benefit / best)
                shares.setdefault((percent, f"files {name}"), []).append(files / most_files)
        line = ", ".join(f"{percent} %: {shares[percent, 'ours'][-1]:.3f}" for percent in BUDGETS)
        size = sum(work_of(one.decision.service, one.decision.evidence).bytes for one in found) / GIB
        print(
            f"lake {number + 1} of {options.lakes}: {total_s / 3600:.1f} core hours, {size:.0f} GiB; ours {line}",
            flush=True,
        )
    result: dict[str, object] = {"tables": options.tables, "lakes": options.lakes}
    for percent in BUDGETS:
        means = {name: round(statistics.mean(shares[percent, name]), 3) for name in ORDERS}
        files = {name: round(statistics.mean(shares[percent, f"files {name}"]), 3) for name in ORDERS}
        result[f"budget_{percent}"] = {**means, "ours_least": round(min(shares[percent, "ours"]), 3), "files": files}
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
