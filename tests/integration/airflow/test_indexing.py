"""The doors to indexing in a real Airflow: operator, sensor, DAG, command."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.timeline.fixture_tables import unpack

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
CONTEXT: Any = {"run_id": "manual", "ti": SimpleNamespace(try_number=1)}


def operator(**arguments: Any) -> Any:
    from airflow_lake_provider.operators.indexing import HudiIndexOperator

    return HudiIndexOperator(task_id="build", base_path="/lake/orders", **arguments)


def test_operator_hands_its_wishes_to_the_job() -> None:
    options = operator(
        indexes='["record_index", "secondary_index:city"]', check="full", wait_s="7", drop_first="True"
    ).build_options()
    assert [wish["partition"] for wish in json.loads(options["lake.index.wanted"])] == [
        "record_index",
        "secondary_index_city",
    ]
    assert (options["lake.index.check"], options["lake.index.wait_s"]) == ("full", "7")
    assert (options["lake.index.drop_first"], options["lake.index.no_writer"]) == ("true", "false")
    assert options["hoodie.metadata.index.check.timeout.seconds"] == "900"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"indexes": "recordindex"}, "is no index"),
        ({"indexes": ["record_index"], "check": "some"}, "some"),
        ({"indexes": ["record_index"]}, "hoodie.write.lock.provider"),
    ],
)
def test_operator_refuses_before_anything_is_started(arguments: dict[str, Any], words: str) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match=words):
        operator(**arguments).execute(CONTEXT)


def test_sensor_answers_for_a_table_on_disk(tmp_path: Path) -> None:
    from airflow_lake_provider.sensors.index_ready import HudiIndexReadySensor

    table = unpack("mor_v9", tmp_path).path

    def poke(index: str) -> Any:
        return HudiIndexReadySensor(task_id="ready", base_path=str(table), index=index).poke(CONTEXT)

    assert poke("files").is_done
    assert not poke("secondary_index:city").is_done


def test_sensor_fails_for_what_is_no_table_and_no_index(tmp_path: Path) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from airflow_lake_provider.sensors.index_ready import HudiIndexReadySensor

    for index in ("files", "unknown"):
        with pytest.raises(AirflowFailException):
            HudiIndexReadySensor(task_id="ready", base_path=str(tmp_path / "none"), index=index).poke(CONTEXT)


def test_reindex_dag_is_a_form_and_maps_over_tables() -> None:
    from airflow.dag_processing.dagbag import DagBag

    dag = DagBag(dag_folder=str(ROOT / "dags")).dags["lake_reindex"]
    assert {"base_path", "indexes", "drop_first", "check", "wait_s", "mode", "spark_conf"} <= set(dag.params)
    build = dag.get_task("build_indexes")
    assert build.is_mapped
    assert {task.task_id for task in build.upstream_list} == {"choose_tables"}


def test_reindex_dag_sees_the_variable_over_the_tables_file(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.dag_processing.dagbag import DagBag

    over = 'tables: [{base_path: "/lake/orders", hudi_options: {hoodie.x: "1"}}]'
    monkeypatch.setenv("AIRFLOW_VAR_LAKE_TABLES", over)
    dag = DagBag(dag_folder=str(ROOT / "dags")).dags["lake_reindex"]
    load_tables = dag.get_task("choose_tables").python_callable.__globals__["load_tables"]
    assert load_tables().policy_for("/lake/orders", "orders").hudi_options["hoodie.x"] == "1"
