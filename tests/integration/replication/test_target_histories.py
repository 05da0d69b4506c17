"""Random histories leave the mirror with the table's rows, and find defects that were brought back.

That Hudi's made paths give such keys: `tests/integration/spark/test_replication_of_made_paths.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

import airflow_lake_provider.replication.pump as pump
import airflow_lake_provider.replication.sinks.database as database
import airflow_lake_provider.replication.sinks.database_columns as columns
import airflow_lake_provider.replication.sinks.database_copy as copies
import airflow_lake_provider.replication.sinks.database_steps as database_steps
from airflow_lake_provider.errors import LakeError, SinkUnavailableError
from local_stack.postgres import LocalPostgres
from tests.integration.replication.target_histories import History

STEPS = 8
Put = Callable[[Any, str, Any], None]


def positions_hold_for_any_target(put: Put) -> None:
    """A position holds for whatever table has the entry's name."""
    put(pump, "find_other_scope", lambda *_: "")


def nulls_are_equal_to_nothing(put: Put) -> None:
    """A key with a null is compared by `=`, and counts as unique where the table has a constraint."""
    put(copies.Arrow, "print", lambda *_: None)
    delete = database_steps._delete

    def by_equality(connection: Any, table: Any, keys: Any) -> None:
        delete(connection, table, [key for key in keys if None not in key.values()])

    put(database_steps, "_delete", by_equality)


def sessions_are_as_they_come(put: Put) -> None:
    """The database's own time zone decides what a time is."""
    run = columns.run_as_it_is

    def without_zone(connection: Any, statement: str) -> None:
        run(connection, statement.replace("set local time zone 'UTC';", ""))

    put(columns, "run_as_it_is", without_zone)


def one_record_stops_all(put: Put) -> None:
    """A record that does not fit stops the stream, whatever the entry says."""

    def together(sink: Any, connection: Any, table: Any, step: Any) -> list[dict[str, str]]:
        del sink
        try:
            database_steps.apply_step(connection, table, step)
        except DBAPIError as error:
            raise SinkUnavailableError(str(error)) from error
        return []

    put(database.DatabaseSink, "_write_apart", together)


FOUND_BY: Mapping[Callable[[Put], None], int] = {
    positions_hold_for_any_target: 3,
    nulls_are_equal_to_nothing: 7,
    sessions_are_as_they_come: 11,
    one_record_stops_all: 5,
}
"""The seed of a history that finds each defect."""


def play(postgres: LocalPostgres, seed: int) -> None:
    History(postgres.url, random.Random(seed)).go(STEPS)


@pytest.mark.parametrize("seed", [0, 1, 3, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 60))])
def test_mirror_has_the_table_s_rows_whatever_becomes_of_it(postgres: LocalPostgres, seed: int) -> None:
    play(postgres, seed)


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Put:
    return monkeypatch.setattr


@pytest.mark.parametrize(("plant", "seed"), FOUND_BY.items(), ids=lambda value: getattr(value, "__name__", str(value)))
def test_defect_that_was_brought_back_is_found(
    postgres: LocalPostgres, put: Put, plant: Callable[[Put], None], seed: int
) -> None:
    plant(put)
    with pytest.raises((AssertionError, pytest.fail.Exception, LakeError)):
        play(postgres, seed)
