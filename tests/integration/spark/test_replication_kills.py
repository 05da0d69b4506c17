"""The kill matrix on the random histories: drivers, executors, the broker and the database die in the middle of runs.

After each kill the run is repeated, and then the sinks are the table's, with each change once, in order per key, as
`test_replication_workload.py` asks of every run. What dies, and when, is drawn; `replication_kills.py` has the means.
LAKE_REPLICATION_WORKLOAD_KILLS=20 asks for so many kills in the long form. What a worker or the manager holds of a
replication is its run's start and its lease: these die in `tests/system/test_replication.py`.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from replication_histories import Kind
from replication_kills import Kills, Victim
from test_replicate_as_process import submit
from test_replication_on_hudi import _time_zone  # noqa: F401 - the fixture holds here as well
from test_replication_workload import (  # noqa: F401 - a fixture
    ALL_KINDS,
    FIRST_SEED,
    STEPS,
    STEPS_PER_ROUND,
    Servers,
    Workload,
    servers,
)

from airflow_lake_provider.replication.checkpoint import from_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_KILLS = int(os.environ.get("LAKE_REPLICATION_WORKLOAD_KILLS", "20"))
MAX_ROUNDS = 30
ON_SERVERS = (Victim.DRIVER, Victim.EXECUTOR, Victim.BROKER, Victim.DATABASE)
WITHOUT = (Victim.DRIVER, Victim.DRIVER, Victim.DRIVER, Victim.EXECUTOR)


def play(
    spark: SparkSession,
    folder: Path,
    kind: Kind,
    seed: int,
    victims: tuple[Victim, ...],
    servers: Servers | None = None,  # noqa: F811
) -> Kills:
    """Play a history until each victim has died. Raises Wrong."""
    killable = {} if servers is None else {Victim.BROKER: servers.broker, Victim.DATABASE: servers.postgres}
    kills = Kills(spark, folder / "kills", seed, list(victims), killable, submit)
    workload = Workload(spark, folder, kind, seed, has_other_lake=servers is None, servers=servers, kills=kills)
    workload.play(STEPS)
    for _ in range(MAX_ROUNDS):
        if not kills.victims:
            break
        workload.play(STEPS_PER_ROUND)
    assert not kills.victims, f"{kills.victims} did not die; {kills.done} did"
    for stream in workload.streams:
        generation = from_text(stream.checkpoint).generation
        stream.seek_back()
        assert from_text(stream.checkpoint).generation == generation
    return kills


@pytest.mark.soak(covered_by="tests/integration/replication/test_kill_matrix.py")
def test_topic_and_warehouse_are_the_table_though_driver_executor_broker_and_database_died(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,  # noqa: F811
) -> None:
    play(spark, tmp_path, Kind("MOR", 9), FIRST_SEED + 4, ON_SERVERS, servers)


@pytest.mark.soak(covered_by="tests/integration/replication/test_kill_matrix.py")
def test_streams_of_all_kinds_of_tables_are_their_tables_though_all_of_it_died(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,  # noqa: F811
) -> None:
    """Servers take turns with files, SQLite and another lake; the seed of a failed history is in the error."""
    died, misses, failures, seed = Counter[str](), 0, 0, FIRST_SEED
    kinds = list(ALL_KINDS)
    random.Random(FIRST_SEED).shuffle(kinds)
    while died.total() < MIN_KILLS:
        kind, is_served = kinds[seed % len(kinds)], seed % 2 == 0
        folder = tmp_path / f"{kind}-{seed}"
        folder.mkdir()
        try:
            victims, of_turn = (ON_SERVERS, servers) if is_served else (WITHOUT, None)
            kills = play(spark, folder, kind, seed, victims, of_turn)
        except Exception as error:
            raise AssertionError(f"seed {seed} on {kind}") from error
        died.update(done.split()[0] for done in kills.done)
        misses, failures, seed = misses + kills.misses, failures + kills.failures, seed + 1
        print(f"after seed {seed - 1}: {dict(died)} died, {misses} runs ended before, {failures} failed", flush=True)
