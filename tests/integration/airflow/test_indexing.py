"""The ways to indexing in a real Airflow: operator, sensor, DAG, command."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.config.service_policies import DAYS
from airflow_lake_provider.config.tables_file import parse_window
from airflow_lake_provider.errors import ConfigError, StorageError
from tests.support.fixture_tables import unpack
from tests.support.tables import HandMadeTable
from tests.support.task_context import as_its_file_says, task_instance

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
LOCK = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}
LISTED = "hoodie.table.metadata.partitions"
CONTEXT: Any = {"run_id": "orders.indexing.20261121120000000.1a", "ti": task_instance()}


def operator(**arguments: Any) -> Any:
    from airflow_lake_provider.operators.indexing import HudiIndexOperator

    return as_its_file_says(HudiIndexOperator(task_id="build", **{"base_path": "/lake/orders", **arguments}))


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
    dropped = operator(indexes="record_index", drop="{{ params.drop }}").template_fields
    assert "drop" in dropped
    assert operator(indexes="record_index", drop="True").build_options()["lake.index.drop"] == "true"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"indexes": "recordindex"}, "is no index"),
        ({"indexes": ["record_index"], "check": "some"}, "some"),
        ({"indexes": ["record_index"], "drop": True, "drop_first": "true"}, "leave out drop_first"),
        ({"drop": "True"}, "name them in indexes"),
        ({"indexes": ["record_index"], "window": {"time_zone": "Mars/Base"}}, "time_zone is 'Mars/Base'"),
    ],
)
def test_operator_refuses_before_anything_is_started(arguments: dict[str, Any], words: str) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match=words):
        operator(**arguments).execute(CONTEXT)


def closed_window() -> dict[str, Any]:
    """An hour of a day that is neither today nor near it, anywhere on Earth."""
    day = DAYS[(datetime.now(UTC).weekday() + 3) % 7]
    return {"days": [day], "begin": "12:00", "end": "13:00", "time_zone": "Europe/Berlin"}


OPEN = {"begin": "00:00", "end": "00:00", "time_zone": "Europe/Berlin"}


def test_build_outside_its_window_waits_without_a_slot_and_begins_when_it_opens(tmp_path: Path) -> None:
    from airflow.sdk.exceptions import AirflowException, TaskDeferred

    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    waiting = operator(base_path=str(table.path), indexes="record_index", hudi_options=LOCK, window=closed_window())
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(CONTEXT)
    opens = parse_window(json.dumps(closed_window()), "window").next_opening(datetime.now(UTC))
    assert (deferred.value.trigger.moment, deferred.value.method_name) == (opens, "execute_in_window")
    # A triggerer that was away while it was open.
    with pytest.raises(TaskDeferred):
        waiting.execute_in_window(CONTEXT, opens)
    waiting.window = json.dumps(OPEN)
    with pytest.raises(AirflowException, match="manager"):  # it goes on to the lease, which no server serves here
        waiting.execute_in_window(CONTEXT, opens)


def test_dry_run_outside_the_window_says_when_the_build_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = HandMadeTable.create(tmp_path / "orders")
    first, _ = table.commit(1), table.commit(3)
    (table.path / ".hoodie" / "timeline" / "20261121120002000.deltacommit.inflight").touch()
    arguments = {"base_path": str(table.path), "indexes": "record_index", "hudi_options": LOCK}
    result = operator(**arguments, window=closed_window(), is_dry_run="True").execute(CONTEXT)
    log = capsys.readouterr().out
    assert result["reason"] == "dry run of indexing schedule_and_execute"
    assert "12:00 to 13:00 Europe/Berlin) is closed: the build begins at 20" in log
    assert "dry run: nothing is started" in log
    # What is in the way of the plan's base, and what becomes of the commits beyond.
    assert f"last completed instant with nothing pending before it: {first}" in log
    assert "in the way: deltacommit 20261121120002000" in log
    assert "completed after it: 20261121120003000" in log


@pytest.mark.parametrize("window", [None, {}, "{}", "null", "", OPEN], ids=str)
def test_build_without_a_window_or_inside_it_does_not_wait(tmp_path: Path, window: Any) -> None:
    from airflow.sdk.exceptions import AirflowException

    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    with pytest.raises(AirflowException, match="manager"):
        operator(base_path=str(table.path), indexes="record_index", hudi_options=LOCK, window=window).execute(CONTEXT)


def test_build_where_no_writer_runs_brings_a_lock_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    arguments = {"base_path": str(table.path), "indexes": "record_index", "is_dry_run": True}
    with pytest.raises(AirflowFailException, match=r"no hoodie\.write\.lock\.provider is configured"):
        operator(**arguments).execute(CONTEXT)
    operator(**arguments, no_writer="True").execute(CONTEXT)
    log = capsys.readouterr().out
    assert f"hoodie.write.lock.provider={LOCK['hoodie.write.lock.provider']}" in log
    assert "lake.index.no_writer=true" in log


def test_sensor_answers_for_a_table_on_disk(tmp_path: Path) -> None:
    from airflow_lake_provider.sensors.indexing import HudiIndexReadySensor

    table = unpack("mor_v9", tmp_path).path

    def poke(index: str) -> Any:
        return HudiIndexReadySensor(task_id="ready", base_path=str(table), index=index).poke(CONTEXT)

    assert poke("files").is_done
    assert not poke("secondary_index:city").is_done


def test_sensor_fails_for_what_is_no_table_and_no_index(tmp_path: Path) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from airflow_lake_provider.sensors.indexing import HudiIndexReadySensor

    for index in ("files", "unknown"):
        with pytest.raises(AirflowFailException):
            HudiIndexReadySensor(task_id="ready", base_path=str(tmp_path / "none"), index=index).poke(CONTEXT)


def test_deferred_sensor_resumes_when_the_properties_list_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from airflow_lake_provider.sensors.indexing import HudiIndexReadySensor
    from airflow_lake_provider.triggers import indexing
    from airflow_lake_provider.triggers.indexing import IndexReadyTrigger

    table = unpack("mor_v9", tmp_path).path

    def sensor(index: str) -> Any:
        return HudiIndexReadySensor(
            task_id="ready", base_path=str(table), index=index, deferrable=True, poke_interval=0.05
        )

    assert sensor("files").execute(CONTEXT) == "files"
    waiting_sensor = sensor("secondary_index:city")
    with pytest.raises(TaskDeferred) as deferred:
        waiting_sensor.execute(CONTEXT)
    path, arguments = deferred.value.trigger.serialize()
    assert path == f"{IndexReadyTrigger.__module__}.{IndexReadyTrigger.__qualname__}"
    trigger = IndexReadyTrigger(**json.loads(json.dumps(arguments)))
    answers: list[bool | None] = []
    load_readiness = indexing.load_readiness

    def ask(*question: Any) -> Any:
        # Other triggers share the event loop, and a store may be slow.
        assert threading.current_thread() is not threading.main_thread()
        if not answers:
            answers.append(None)
            raise StorageError("the store did not answer")
        readiness = load_readiness(*question)
        answers.append(readiness.is_ready)
        return readiness

    monkeypatch.setattr(indexing, "load_readiness", ask)

    async def fire() -> dict[str, str]:
        events = trigger.run()
        waiting = asyncio.ensure_future(anext(events))
        async with asyncio.timeout(30):
            while answers[:3] != [None, False, False]:
                assert not waiting.done()
                await asyncio.sleep(0.01)
        await asyncio.to_thread(list_index, table, "secondary_index_city")
        event = await asyncio.wait_for(waiting, timeout=30)
        await events.aclose()
        return event.payload

    event = asyncio.run(fire())
    assert event == {"status": "success", "partition": "secondary_index_city"}
    assert answers[-1] is True
    assert waiting_sensor.execute_complete(CONTEXT, event) == "secondary_index_city"


def test_deferred_sensor_fails_for_what_is_no_table(tmp_path: Path) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from airflow_lake_provider.sensors.indexing import HudiIndexReadySensor

    sensor = HudiIndexReadySensor(task_id="ready", base_path=str(tmp_path / "none"), index="files", deferrable=True)

    async def fire() -> dict[str, str]:
        return (await asyncio.wait_for(anext(sensor.build_trigger().run()), timeout=30)).payload

    with pytest.raises(AirflowFailException):
        sensor.execute_complete(CONTEXT, asyncio.run(fire()))


def list_index(table: Path, partition: str) -> None:
    """List an index in the table's properties, as a writer that completes its build does."""
    properties = table / ".hoodie" / "hoodie.properties"
    lines = [line for line in properties.read_text().splitlines() if not line.startswith(LISTED)]
    properties.write_text("\n".join([*lines, f"{LISTED}=files,{partition}"]) + "\n")


def test_reindex_dag_is_a_form_and_maps_over_tables() -> None:
    from airflow.dag_processing.dagbag import DagBag

    dag = DagBag(dag_folder=str(ROOT / "dags")).dags["lake_reindex"]
    named = {"base_path", "indexes", "drop_first", "drop", "check", "wait_s", "mode", "window", "dry_run", "spark_conf"}
    assert named <= set(dag.params)
    build = dag.get_task("build_indexes")
    assert build.is_mapped
    assert {task.task_id for task in build.upstream_list} == {"choose_tables"}


class Registry:
    """A manager that knows three tables, and gives them page by page."""

    paths = ("/lake/orders", "/lake/returns", "/raw/orders")

    def list_tables(self, after: str = "") -> list[dict[str, str]]:
        left = [path for path in self.paths if path > after]
        return [{"table_id": path, "base_path": path, "table_name": path.rsplit("/", 1)[-1]} for path in left[:1]]


@pytest.mark.parametrize(
    ("base_path", "chosen"),
    [("/lake/*", ["/lake/orders", "/lake/returns"]), ("/lake/orders/", ["/lake/orders"])],
)
def test_reindex_chooses_one_table_or_those_of_a_pattern(
    monkeypatch: pytest.MonkeyPatch, base_path: str, chosen: list[str]
) -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk.exceptions import AirflowFailException

    dag = DagBag(dag_folder=str(ROOT / "dags")).dags["lake_reindex"]
    choose = dag.get_task("choose_tables").python_callable
    empty = dict.fromkeys((*choose.__globals__["OF_THE_FORM"], "dry_run"))
    params = empty | {"base_path": base_path, "window": {}, "hudi_options": {"hoodie.x": "1"}}
    monkeypatch.setitem(choose.__globals__, "get_current_context", lambda: {"params": params})
    monkeypatch.setitem(choose.__globals__, "LakeHook", Registry)
    found = choose()
    assert [table["base_path"] for table in found] == chosen
    assert all(table["hudi_options"] == {"hoodie.x": "1"} for table in found)
    params["base_path"] = "/none/*"
    with pytest.raises(AirflowFailException, match=r"base_path /none/\*: none of the 3 tables of the registry"):
        choose()
    params["window"] = {"time_zone": "Mars/Base"}
    with pytest.raises(ConfigError, match="time_zone is 'Mars/Base'"):
        choose()


Trigger = Callable[[dict[str, Any]], str]


def trigger_by_command(conf: dict[str, Any]) -> str:
    """As `airflow dags trigger` does; return the complaint, empty when a run was made."""
    from airflow.cli.cli_parser import get_parser
    from airflow.sdk.exceptions import ParamValidationError

    arguments = get_parser().parse_args(["dags", "trigger", "lake_reindex", "-c", json.dumps(conf)])
    try:
        arguments.func(arguments)
    except (ParamValidationError, ValueError) as error:
        return str(error)
    return ""


def trigger_by_rest(conf: dict[str, Any]) -> str:
    """As the form in the UI and any HTTP client do."""
    from airflow.api_fastapi.app import create_app, get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from starlette.testclient import TestClient

    client = TestClient(create_app(apps="core"))
    user = SimpleAuthManagerUser(username="boss", role="admin")
    client.cookies.set("_token", get_auth_manager().generate_jwt(user))
    shown = client.get("/api/v2/dags/lake_reindex/details").json()["params"]["window"]["schema"]
    assert set(shown["properties"]) == {"days", "begin", "end", "time_zone"}
    response = client.post("/api/v2/dags/lake_reindex/dagRuns", json={"logical_date": None, "conf": conf})
    return "" if response.is_success else response.text


# Airflow's own: graphviz is not there, and a deprecated field is shown.
@pytest.mark.filterwarnings("ignore:Could not import graphviz", "ignore:deprecated:DeprecationWarning")
@pytest.mark.parametrize("trigger", [trigger_by_command, trigger_by_rest], ids=["command", "form-and-rest"])
def test_reindex_takes_a_window_and_refuses_a_wrong_one(trigger: Trigger) -> None:
    conf = {"base_path": "/lake/orders", "indexes": ["record_index"]}
    assert trigger({**conf, "window": closed_window()}) == ""
    assert "friday" in trigger({**conf, "window": {"days": ["friday"]}})
    assert "25:00" in trigger({**conf, "window": {"begin": "25:00"}})
