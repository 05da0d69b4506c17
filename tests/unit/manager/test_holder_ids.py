"""A task in a run has one id for all its tries, and shares it with no other task: of leases, sinks and records."""

from __future__ import annotations

import pytest

from airflow_lake_provider.errors import ExecutorBusyError, LeaseHolder
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.leases import Executors
from airflow_lake_provider.manager.db.operations import RunReport, load_outcomes, report_run
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.runs.holder_ids import ANY_TASK, MAX_CHARACTERS, holder_id, run_of_holder

RUN = "scheduled__2026-11-28T00:00:00+00:00"


def test_id_names_dag_task_and_map_index() -> None:
    ids = [
        holder_id("shop", RUN, "clean"),
        holder_id("bank", RUN, "clean"),
        holder_id("bank", RUN, "clean", 0),
        holder_id("bank", RUN, "clean", 1),
        holder_id("bank", RUN, ANY_TASK),
        holder_id("bank", f"clean/{RUN}", "x"),
        holder_id("lake_table_service", RUN, "run_service"),
    ]
    assert ids[0] == f"shop/clean/{RUN}"
    assert ids[2] == f"bank/clean[0]/{RUN}"
    assert ids[-1] == RUN, "the manager finds its runs by their own id"
    assert len(set(ids)) == len(ids)


def test_run_with_a_slash_in_its_id_is_none_of_another_dag() -> None:
    by_hand = holder_id("lake_table_service", f"shop/clean/{RUN}", "run_service")
    assert by_hand != holder_id("shop", RUN, "clean")
    assert run_of_holder(by_hand) == ("lake_table_service", f"shop/clean/{RUN}")


def test_run_is_found_again() -> None:
    assert run_of_holder(holder_id("lake_reindex", RUN, "build_indexes", 17)) == ("lake_reindex", RUN)
    assert run_of_holder(RUN) == ("lake_table_service", RUN)


def test_long_ids_stay_apart() -> None:
    ids = [holder_id("d" * 240, RUN, "t" * 240, number) for number in range(3)]
    assert [len(one) for one in ids] == [MAX_CHARACTERS] * 3
    assert len(set(ids)) == 3


def test_two_dags_with_one_schedule_are_two_executors(registry: Registry) -> None:
    """The second is refused, whatever host it runs on; the next try of the first takes over what has ended."""
    shop, bank = (holder_id(dag_id, RUN, "clean") for dag_id in ("shop", "bank"))
    executors = Executors(registry, 60)
    executors.acquire("orders-1", Service.CLEAN, shop, 1)
    with pytest.raises(ExecutorBusyError, match=f"run shop/clean/{RUN[:10]}") as refused:
        executors.acquire("orders-1", Service.CLEAN, bank, 1)
    assert refused.value.holder == LeaseHolder(shop, 1)
    assert executors.acquire("orders-1", Service.CLEAN, shop, 2, ended=LeaseHolder(shop, 1)).try_number == 2


def test_tasks_of_one_run_have_records_of_their_own(registry: Registry) -> None:
    """A DAG that cleans two tables, mapped: the second table's record is no part of the first one's."""
    tables = [registry.mark_dirty(Notice(f"/lake/{name}", name, Source.HINT)).table_id for name in ("one", "two")]
    ids = [holder_id("shop", RUN, "clean", number) for number in range(2)]
    with registry.transaction() as session:
        for table_id, run_id, files in zip(tables, ids, (3, 5), strict=True):
            report_run(session, table_id, run_id, "clean", RunReport(1, "completed", 1_000, files), 0)
        outcomes = load_outcomes(session, ids)
    assert [outcomes[one].files_in for one in ids] == [3, 5]
