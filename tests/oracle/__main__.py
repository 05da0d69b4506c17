"""Run histories by hand: `python -m tests.oracle SEED [--steps 0,3,7]`, or one that a run printed.

python -m tests.oracle 17                        the history of a seed
python -m tests.oracle 17 --steps 0,3,7          only these of its steps
python -m tests.oracle 17 --for-s 300            this seed and the next ones, for so long
python -m tests.oracle --setup 9,MOR,1,at_commit --steps 'index:3 write:4'
python -m tests.oracle 17 --for-s 300 --store hdfs    on a real HDFS, or on S3 (s3)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "spark_jobs"), str(ROOT)]

from lake_jobs.driver.java_names import prepare_java_names  # noqa: E402
from tests.oracle.cases import CASES  # noqa: E402
from tests.oracle.history import History, chosen, draw_history  # noqa: E402
from tests.oracle.hudi_answers import Hudi  # noqa: E402
from tests.oracle.known import is_known  # noqa: E402
from tests.oracle.places import KINDS, open_place  # noqa: E402
from tests.oracle.plants import PLANTS  # noqa: E402
from tests.oracle.run import Campaign, Outcome, run_history, shrink_difference  # noqa: E402
from tests.support.spark_session import open_test_session  # noqa: E402


def say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", nargs="?", type=int, default=0)
    parser.add_argument("--setup", help="version, type, metadata table, how writers update it")
    parser.add_argument("--steps", default="", help="numbers of a seed's steps, or the steps themselves")
    parser.add_argument("--store", choices=KINDS, default="local", help="where the tables lie")
    parser.add_argument("--for-s", type=float, default=0.0, help="go on with the next seeds for so long")
    parser.add_argument("--shrink-s", type=float, default=0.0, help="shrink each difference for so long")
    parser.add_argument(
        "--plant", choices=sorted(PLANTS), help="bring a defect back first; --for-s ends when it is found"
    )
    given = parser.parse_args()
    if given.plant:
        PLANTS[given.plant](setattr)
    prepare_java_names()
    folder = Path(tempfile.mkdtemp(prefix="oracle-session-"))
    with open_place(given.store, folder) as place:
        spark = open_test_session(folder, place.spark_conf)
        try:
            return run(Hudi(spark, place), given)
        finally:
            spark.stop()


def run(hudi: Hudi, given: argparse.Namespace) -> int:
    started = time.monotonic()
    if given.setup:
        outcomes = [run_history(hudi, History.parse(given.setup, given.steps), say=say)]
    elif given.for_s:
        campaign = Campaign(
            hudi, say, stop_at={case.kind for case in CASES if given.plant and case.plant == given.plant}
        )
        campaign.run(given.seed, given.for_s)
        outcomes = campaign.outcomes
    else:
        history = draw_history(given.seed)
        if given.steps:
            history = chosen(history, [int(number) for number in given.steps.split(",")])
        outcomes = [run_history(hudi, history, say=say)]
    for outcome in outcomes:
        report(hudi, outcome, given.shrink_s)
    steps = sum(outcome.steps for outcome in outcomes)
    say(f"{len(outcomes)} histories, {steps} steps in {time.monotonic() - started:.0f} s")
    return int(any(not is_known(found) for outcome in outcomes for _, found in outcome.differences))


def report(hudi: Hudi, outcome: Outcome, shrink_s: float) -> None:
    first: dict[str, str] = {}
    for number, difference in outcome.differences:
        first.setdefault(difference.kind, f"after step {number}: {difference}")
    for kind, text in first.items():
        say(f"DIFFERENCE {text}\n  {hudi.command(outcome.history)}")
        if shrink_s:
            say(f"  shrunk: {hudi.command(shrink_difference(hudi, outcome.history, kind, shrink_s))}")


if __name__ == "__main__":
    sys.exit(main())
