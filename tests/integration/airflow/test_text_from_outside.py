"""Text from a run's conf, from the registry and from tables is data: no shipped DAG renders it as a template.

Airflow's own task runner and database; the operators' jobs are played.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_lake_provider.hooks.route_path import route
from airflow_lake_provider.hudi.base_path import table_id_of
from tests.integration.airflow.conftest import LAKE
from tests.support.http_server import JsonHandler, serve
from tests.support.tables import HandMadeTable

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
TEXTS = ("{{ 7*7 }}", "{{ conn.prod_db.password }}", "{% raise %}")


class Manager(JsonHandler):
    """Answers the requests of the shipped DAGs with names and paths that a table may have."""

    answers: ClassVar[dict[str, Any]] = {}
    asked: ClassVar[list[tuple[str, Any]]] = []

    def do_GET(self) -> None:
        self.answer(self.answers[self.path.removeprefix("/v1/hoodie").partition("?")[0]])

    def do_POST(self) -> None:
        path = self.path.removeprefix("/v1/hoodie")
        self.asked.append((path, self.body() if int(self.headers["content-length"]) else {}))
        self.answer(self.answers[path])


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Manager]]:
    Manager.answers, Manager.asked = {}, []
    monkeypatch.setenv("AIRFLOW_CONN_PROD_DB", "postgresql://app:hunter2@db/prod")
    with serve(Manager) as url:
        monkeypatch.setenv("AIRFLOW__LAKE__MANAGER_URL", url)
        yield Manager


def run(dag_id: str, conf: dict[str, Any] | None = None) -> None:
    from airflow.dag_processing.dagbag import DagBag

    dag = DagBag(dag_folder=str(ROOT / "dags" / f"{dag_id}.py")).dags[dag_id]
    for task in dag.tasks:
        # A test that fails must not wait for its retries.
        getattr(task, "partial_kwargs", vars(task))["retries"] = 0
    assert dag.test(run_conf=conf).state == "success"


def record(monkeypatch: pytest.MonkeyPatch, operator: type) -> list[dict[str, Any]]:
    """Play an operator; return the arguments that its tasks had."""
    seen: list[dict[str, Any]] = []

    def execute(self: Any, context: Any) -> None:
        seen.append({name: value for name, value in vars(self).items() if not name.startswith("_")})

    monkeypatch.setattr(operator, "execute", execute)
    return seen


@pytest.mark.parametrize("text", TEXTS)
def test_replication_by_hand_and_of_a_due_sink(
    manager: type[Manager], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    from airflow_lake_provider.operators.replication import HudiReplicationOperator

    seen = record(monkeypatch, HudiReplicationOperator)
    by_hand = {
        "action": "replicate",
        "base_path": f"/lake/{text}",
        "name": text,
        "sink": text,
        "key": [text],
        "options": {text: text},
        "spark_conf": {"spark.x": text},
        "rows": text,
        "seek_until": text,
    }
    entry = route("tables", table_id_of(f"/lake/{text}"), "sinks", text, "entry")
    manager.answers[entry] = {"sink": text, "mode": text, "options": {"topic": text}, "spark_conf": {text: text}}
    run("lake_replication", by_hand)
    by_hand |= {"mode": text, "options": {text: text, "topic": text}, "spark_conf": {"spark.x": text, text: text}}
    given = {key: value for key, value in by_hand.items() if key != "action"}
    assert {key: seen[0][key] for key in given} == given
    due = dict.fromkeys(("table_name", "name", "sink", "mode"), text) | {
        "base_path": f"/lake/{text}",
        "key": [text],
        "options": {"topic": text},
        "spark_conf": {text: text},
        "ttl_s": 1.0,
        "max_hold_s": None,
        "max_held_bytes": None,
    }
    manager.answers["/sinks/claim"] = {"sinks": [due]}
    run("lake_replication")
    assert {key: seen[1][key] for key in due} == due


@pytest.mark.parametrize("text", TEXTS)
def test_indexes_by_hand_and_of_a_pattern(manager: type[Manager], monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    from airflow_lake_provider.hooks.lake import LakeHook
    from airflow_lake_provider.operators.indexing import HudiIndexOperator

    seen = record(monkeypatch, HudiIndexOperator)
    by_hand = {
        "base_path": f"/lake/{text.replace('*', '+')}",  # with a star it would be a pattern
        "indexes": [text],
        "hudi_options": {text: text},
        "spark_conf": {text: text},
    }
    run("lake_reindex", by_hand)
    assert {key: seen[0][key] for key in by_hand} == by_hand
    row = {"table_id": "t", "base_path": f"/lake/shop/{text}", "table_name": text}
    monkeypatch.setattr(LakeHook, "list_tables", lambda _, after: [] if after else [row])
    run("lake_reindex", {"base_path": "/lake/shop/*"})
    assert (seen[1]["base_path"], seen[1]["table_name"]) == (row["base_path"], text)


@pytest.mark.parametrize("text", TEXTS)
def test_service(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    from airflow_lake_provider.operators.table_service import HudiTableServiceOperator

    seen = record(monkeypatch, HudiTableServiceOperator)
    texts = dict.fromkeys(("table_name", "engine", "spark_conn_id"), text)
    settings = {key: {text: text} for key in ("hudi_options", "spark_conf", "conflict")}
    conf = {"base_path": f"/lake/{text}", "service": "clean", "instants": [text], "reason": text, "timeout_s": 60}
    run("lake_table_service", {**conf, **texts, **settings, "evidence": {text: text}})
    assert seen[0]["base_path"] == conf["base_path"]
    assert {key: seen[0][key] for key in texts} == texts
    assert seen[0]["instants"] == text
    assert {key: json.loads(seen[0][key]) for key in settings} == settings


@pytest.mark.parametrize("text", TEXTS)
def test_discovery_and_watch(manager: type[Manager], text: str) -> None:
    root = LAKE / f"found {text.replace('/', '')}"
    table = HandMadeTable.create(root / text)
    table.commit(1)
    properties = table.path / ".hoodie" / "hoodie.properties"
    properties.write_text(properties.read_text().replace("hoodie.table.name=orders", f"hoodie.table.name={text}"))
    found = {"root": str(root), "depth": 2, "problem": "", "metastore": "", "databases": []}
    manager.answers["/discovery/roots"] = {"roots": [found]}
    manager.answers["/discovery/tables"] = {"registered": 1, "known": 0}
    run("lake_discovery")
    assert [body["tables"][0]["base_path"] for _, body in manager.asked] == [str(table.path)]

    manager.asked.clear()
    silent = {"table_id": table_id_of(str(table.path)), "base_path": str(table.path), "table_name": text}
    manager.answers["/tables/silent"] = {"tables": [silent | {"completed_time": ""}]}
    manager.answers["/hints"], manager.answers["/sweep"] = {"marked": 1}, {"waiting": 0}
    run("lake_watch")
    (hint,) = next(body["hints"] for path, body in manager.asked if path == "/hints")
    assert (hint["base_path"], hint["table_name"]) == (str(table.path), text)


@pytest.mark.parametrize("text", TEXTS)
def test_warm(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    from airflow_lake_provider.execution import job

    seen: list[str] = []
    monkeypatch.setattr(job, "run_standing_application", lambda key, *_: seen.append(key) or "")
    run("lake_warm", {"key": text})
    assert seen == [text]


def test_no_mapped_operator_of_a_shipped_dag_renders_anything() -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk.definitions._internal.expandinput import ListOfDictsExpandInput
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    mapped = [
        task
        for dag in DagBag(dag_folder=str(ROOT / "dags")).dags.values()
        for task in dag.tasks
        if isinstance(task, MappedOperator) and isinstance(task._get_specified_expand_input(), ListOfDictsExpandInput)
    ]
    assert {task.task_id for task in mapped} == {"replicate", "build_indexes", "upgrade"}
    assert all(not task.template_fields for task in mapped)


OPERATORS = [
    ("operators.table_service", "HudiTableServiceOperator", "base_path"),
    ("operators.indexing", "HudiIndexOperator", "base_path"),
    ("operators.erasure", "HudiEraseOperator", "base_path"),
    ("operators.erasure", "HudiEraseOperator", "folder"),
    ("operators.restore", "HudiRestoreOperator", "base_path"),
    ("operators.upgrade", "HudiUpgradeOperator", "base_path"),
    ("operators.replication", "HudiReplicationOperator", "base_path"),
    ("operators.hold", "LakeHoldOperator", "table"),
    ("operators.hold", "LakeReleaseOperator", "hold"),
    ("sensors.commit", "HudiCommitSensor", "base_path"),
    ("sensors.indexing", "HudiPendingIndexSensor", "base_path"),
    ("sensors.indexing", "HudiIndexReadySensor", "base_path"),
    ("sensors.conflict", "HudiConflictSensor", "base_path"),
    ("sensors.replication_lag", "HudiReplicationLagSensor", "base_path"),
    ("sensors.backpressure", "HudiBackpressureSensor", "table"),
]
NEEDED = {
    "HudiTableServiceOperator": {"service": "clean"},
    "HudiEraseOperator": {"step": "check", "base_path": "/lake/t", "folder": "/lake/keys"},
    "HudiRestoreOperator": {"savepoint": "20261121120001000"},
    "HudiUpgradeOperator": {"version": 9},
    "HudiReplicationOperator": {"sink": "noop"},
    "LakeHoldOperator": {"lasts_s": 60},
    "HudiReplicationLagSensor": {"sink": "noop"},
    "HudiIndexReadySensor": {"index": "files"},
    "HudiConflictSensor": {"partitions": ["x"]},
}


@pytest.mark.parametrize(("module", "name", "field"), OPERATORS)
def test_operator_in_a_dag_of_a_users_renders_what_the_dag_says_and_not_what_a_task_returned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, name: str, field: str
) -> None:
    from importlib import import_module

    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.sdk import DAG, task

    operator = getattr(import_module(f"airflow_lake_provider.{module}"), name)
    seen = record(monkeypatch, operator)
    needed = {key: value for key, value in NEEDED.get(name, {}).items() if key != field}
    with DAG(f"users_{name}", schedule=None) as dag:

        @task
        def find(text: str) -> str:
            return text

        @task
        def find_many(text: str) -> list[dict[str, str]]:
            return [{field: text}]

        @task
        def find_texts(text: str) -> list[str]:
            return [text]

        raw = "{% raw %}{{ 7*7 }}{% endraw %}"
        operator(task_id="own", **needed, **{field: "{{ 7*6 }}"})
        operator(task_id="plain", **needed, **{field: find(raw)})
        operator.partial(task_id="kwargs", **needed).expand_kwargs(find_many(raw))
        operator.partial(task_id="mapped", **needed).expand(**{field: find_texts(raw)})
        operator.partial(task_id="literal", **needed).expand(**{field: ["{{ 7*6 }}"]})
        operator.partial(task_id="partial", retries=0, **needed, **{field: "{{ 7*6 }}"}).expand_kwargs(
            find_many.override(task_id="nothing")(raw).map(lambda _: {"doc": "x"})
        )
    bag = DagBag(dag_folder=str(tmp_path))
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "lake", None)
    assert dag.test().state == "success"
    found = {one["task_id"]: one[field] for one in seen}
    assert found == {
        "own": "42",
        "plain": "{{ 7*7 }}",
        "kwargs": "{{ 7*7 }}",
        "mapped": "{{ 7*7 }}",
        "literal": "42",
        "partial": "42",
    }


def test_operator_in_a_dag_of_a_users_sets_what_its_file_says_and_not_what_a_run_says(
    manager: type[Manager], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.sdk import DAG, Param, task

    from airflow_lake_provider.operators import table_service
    from airflow_lake_provider.operators.table_service import HudiTableServiceOperator

    table = HandMadeTable.create(LAKE / "of_a_users_dag")
    table.commit(1)
    none: dict[str, str] = {}
    manager.answers["/policy"] = {
        "hudi_options": {"hoodie.write.lock.provider": "x"},
        "spark_conf": none,
        "conflict": none,
        "engine": "",
        "spark_conn_id": "",
        "timeout_s": 60,
    }
    manager.answers[f"/tables/{table_id_of(str(table.path))}/runs"] = {}
    jobs: dict[str, Any] = {}
    monkeypatch.setattr(table_service, "describe", lambda job, pending: jobs.update({job.conf["spark.x"]: job}) or "")

    def add(task_id: str, conf: Any, **more: Any) -> Any:
        arguments = {"task_id": task_id, "service": "savepoint", "is_dry_run": True, "retries": 0, "spark_conf": conf}
        return HudiTableServiceOperator.partial(**arguments, **more)

    place = {"base_path": [str(table.path)]}
    with DAG("users_settings", schedule=None, params={"jars": Param("", type="string")}) as dag:

        @task
        def find(params: Any = None) -> list[dict[str, Any]]:
            return [{"base_path": str(table.path), "hudi_options": {"hoodie.metadata.enable": params["jars"]}}]

        own = {"spark.jars": "own.jar", "spark.eventLog.dir": "file:/logs"}
        HudiTableServiceOperator(
            task_id="own",
            base_path=str(table.path),
            service="savepoint",
            is_dry_run=True,
            retries=0,
            spark_conf={"spark.x": "own", **own},
            hudi_options='{"hoodie.metadata.enable": "false"}',
        )
        HudiTableServiceOperator(
            task_id="run",
            base_path=str(table.path),
            service="savepoint",
            is_dry_run=True,
            retries=0,
            spark_conf={"spark.x": "run", "spark.jars": "{{ params.jars }}"},
        )
        add("partial", {"spark.x": "partial", **own}).expand(**place)
        add("mapped", {"spark.x": "mapped"}).expand(**place, hudi_options=[{"hoodie.metadata.enable": "false"}])
        add("found", {"spark.x": "found"}).expand_kwargs(find())
    bag = DagBag(dag_folder=str(tmp_path))
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "lake", None)
    ran = dag.test(run_conf={"jars": "own.jar"})
    assert jobs.keys() == {"own", "partial"}
    assert {job.conf["spark.jars"] for job in jobs.values()} == {"own.jar"}
    assert jobs["own"].request.hudi_options["hoodie.metadata.enable"] == "false"
    states = {one.task_id: one.state for one in ran.get_task_instances()}
    assert {task_id for task_id, state in states.items() if state == "failed"} == {"run", "mapped", "found"}
