"""`airflow lake ...`, as Airflow's command line runs it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.runs.run_ids import run_id_of
from airflow_lake_provider.planner.decide import DECIDED
from tests.support.airflow_command import run
from tests.support.fixture_tables import unpack
from tests.support.tables import HandMadeTable

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def no_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another Airflow on this machine must not answer.
    monkeypatch.setenv("LAKE_NO_MANAGER", "1")


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    table = HandMadeTable.create(tmp_path / "orders; $(x) ü")
    for second in range(1, 7):
        table.commit(second)
    return table


def test_explain_says_of_each_service_whether_and_why(table: HandMadeTable, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run(capsys, "explain", str(table.path))
    assert code == 0
    assert "MERGE_ON_READ, version 9" in output
    assert re.search(r"compaction +blocked +6 delta commits and no compaction yet \(rule: 5\)", output)
    # What is in the way of every service is said once.
    assert output.count("no hoodie.write.lock.provider is configured") == 1
    assert re.search(r"rules +verify sample, enabled yes, delta_commits 5", output)
    assert re.search(r"found +delta_commits 6", output)
    assert "next evaluation never: not in the registry" in output
    for service in DECIDED:
        assert service in output
    _, text = run(capsys, "explain", str(table.path), "-o", "json")
    services = {row["service"]: row for row in json.loads(text)["services"]}
    assert set(services) == DECIDED
    assert services["compaction"]["rules"]["delta_commits"] == 5
    assert services["compaction"]["found"]["delta_commits"] == 6


@pytest.fixture
def variable() -> Iterator[None]:
    from airflow.models.variable import Variable

    lock = "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"
    Variable.set("lake_tables", json.dumps({"defaults": {"hudi_options": {"hoodie.write.lock.provider": lock}}}))
    yield
    Variable.delete("lake_tables")


@pytest.mark.usefixtures("variable")
def test_explain_says_what_would_be_started_now_and_starts_nothing(
    table: HandMadeTable, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lock comes from the Variable, so this also shows that commands see it."""
    from airflow_lake_provider.hudi.base_path import table_id_of
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    code, output = run(capsys, "explain", str(table.path), "--dry-run")
    assert code == 0
    assert re.search(r"would start \S+\.compaction\.\d+\.[0-9a-f]{16}: schedule_and_execute: 6 delta commits", output)
    _, text = run(capsys, "explain", str(table.path), "--dry-run", "-o", "json")
    assert "compaction" in [row["service"] for row in json.loads(text)]
    assert re.search(r"now +start \S+\.compaction\.", run(capsys, "explain", str(table.path))[1])
    # A second service of the table would have to wait for the first.
    dead = table.path / ".hoodie" / "timeline" / "20261121120009000.deltacommit.requested"
    dead.touch()
    assert re.search(
        r"in the way: deltacommit 20261121120009000 .*no heartbeat\): nothing proves that its writer is dead",
        run(capsys, "explain", str(table.path))[1],
    )
    heartbeat = table.path / ".hoodie" / ".heartbeat" / "20261121120009000"
    heartbeat.parent.mkdir()
    heartbeat.touch()
    os.utime(heartbeat, (1, 1))
    _, output = run(capsys, "explain", str(table.path))
    assert "last completed instant with nothing pending before it: 20261121120006000\n" in output
    assert re.search(r"in the way: deltacommit 20261121120009000 .*writer, .*\): its writer is dead", output)
    assert re.search(r"now +start \S+\.rollback\.20261121120009000\.[0-9a-f]{16}\n", output)
    assert re.search(
        r"now +waiting \S+: waits for rollback, which runs: a table runs at most 1 service at a time",
        output,
    )
    assert run(capsys, "explain", str(table.path), "--dry-run")[1].count("would start") == 1
    with open_registry().transaction() as session:
        assert AirflowRunGateway().find_active_runs(session, table_id_of(str(table.path))) == []


def test_runs_lists_the_instances_of_a_table(table: HandMadeTable, capsys: pytest.CaptureFixture[str]) -> None:
    from airflow_lake_provider.hudi.base_path import table_id_of
    from airflow_lake_provider.manager.db.rows import Notice, Source
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    assert f"No table at {table.path} in the registry" in run(capsys, "runs", str(table.path))[1]
    registry, table_id = open_registry(), table_id_of(str(table.path))
    registry.mark_dirty(Notice(str(table.path), "orders", Source.COMMIT_CALLBACK))
    plan = table.plan(9)
    conf = {"base_path": str(table.path), "service": "compaction", "instants": [plan]}
    run_id = run_id_of(table_id, Service.COMPACTION, plan)
    with registry.transaction() as session:
        AirflowRunGateway().create_run(session, run_id, conf, note="why")
    code, output = run(capsys, "runs", str(table.path))
    assert code == 0
    assert re.search(r"requested +evaluation .*\n +a commit callback requests an evaluation", output)
    assert re.search(rf"scheduled +compaction .*until .*: Airflow's scheduler +{run_id}", output)
    rows = json.loads(run(capsys, "runs", str(table.path), "-o", "json")[1])
    assert [row["plans"] for row in rows] == [[], [plan]]
    assert "scheduled" in run(capsys, "explain", str(table.path))[1]


@pytest.mark.usefixtures("variable")
def test_tables_file_is_checked_with_the_variable_and_its_schema_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tables.yaml"
    path.write_text("tables: [{discover: /lake/landing}]", encoding="utf-8")
    code, output = run(capsys, "tables-file", "--check", str(path))
    assert (code, "is right: 1 entries" in output) == (0, True)
    assert "Variable lake_tables over it is right: 0 entries" in output
    assert "searched for below /lake/landing, 3 levels down" in output
    path.write_text("defaults:\n  compaction: {delta_commits: 0}", encoding="utf-8")
    code, output = run(capsys, "tables-file", "--check", str(path))
    assert code == 1
    assert "tables.yaml:2: compaction.delta_commits is '0', allowed: a whole number from 1, or null for off" in output
    assert json.loads(run(capsys, "tables-file", "--schema")[1])["properties"]["tables"]["type"] == "array"


def test_tables_file_names_every_mistake_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tables.yaml"
    path.write_text("defaults:\n  compaction: {delta_commits: 0}\n  clean: {retain: 3}\ntables:\n  - {nam: orders}\n")
    code, output = run(capsys, "tables-file", "--check", str(path))
    assert (code, [f"tables.yaml:{line}: " in output for line in (2, 3, 5)]) == (1, [True, True, True])


def test_run_starts_what_the_policy_says_once(
    table: HandMadeTable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow_lake_provider.hudi.base_path import table_id_of
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    monkeypatch.setenv("AIRFLOW_VAR_LAKE_TABLES", json.dumps({"defaults": {"clean": {"retained_commits": 7}}}))

    def active() -> list[str]:
        with open_registry().transaction() as session:
            found = AirflowRunGateway().find_active_runs(session, table_id_of(str(table.path)))
        return [one.run_id for one in found]

    code, output = run(capsys, "run", str(table.path), "clean", "--dry-run")
    assert (code, "hoodie.clean.commits.retained 7" in output, active()) == (0, True, [])
    code, text = run(capsys, "run", str(table.path), "clean", "-o", "json")
    (row,) = json.loads(text)
    assert (code, active()) == (0, [row["run_id"]])
    assert json.loads(run(capsys, "run", str(table.path), "clean", "-o", "json")[1])[0]["run_id"] == row["run_id"]
    assert len(active()) == 1
    assert "outside the configured roots" in run(capsys, "run", "/elsewhere/orders", "clean")[1]


def test_tables_says_that_the_settings_are_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow_lake_provider.cli.command import open_reports

    path = tmp_path / "tables.yaml"
    path.write_text("defaults: {polol: x}", encoding="utf-8")
    monkeypatch.setenv("AIRFLOW__LAKE__TABLES_FILE", str(path))
    assert "tables.yaml:1: unknown setting 'polol'" in open_reports().find_settings_problem()
    assert run(capsys, "tables")[0] == 0


def test_doctor_and_explain_name_a_damaged_commit_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = unpack("mor_v6", tmp_path).path
    assert run(capsys, "doctor", str(path), "-o", "json")[1].count("unreadable_file") == 0
    file = max((path / ".hoodie").glob("*.deltacommit"))
    file.write_text("{broken")
    code, output = run(capsys, "doctor", str(path))
    assert (code, output.count(f"unreadable_file: {file.name}: damaged JSON")) == (1, 1)
    assert "nothing is stuck" not in output
    code, output = run(capsys, "doctor", str(path), "-o", "json")
    damage = [row for row in json.loads(output) if row["kind"] == "unreadable_file"]
    assert (code, [row["instant"] for row in damage]) == (1, [file.name.partition(".")[0]])
    code, output = run(capsys, "explain", str(path))
    assert (code, output.count(file.name)) == (0, 1)


@pytest.mark.parametrize("command", ["explain", "doctor"])
def test_commands_on_no_table_say_so(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run(capsys, command, str(tmp_path / "nothing"))
    assert (code, "No Hudi table" in output) == (1, True)
    code, output = run(capsys, command, "no-such-table")
    assert (code, "No table 'no-such-table' in the registry" in output) == (1, True)


def test_commands_take_the_policy_of_the_name_in_the_properties_not_of_the_folder(
    table: HandMadeTable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = table.path.name
    over = (
        "tables: [{name: orders-by-properties, compaction: {delta_commits: 77}}, "
        f"{{name: {folder}, compaction: {{delta_commits: 5}}, doctor: {{repairs: [orphaned_lock]}}}}]"
    )
    monkeypatch.setenv("AIRFLOW_VAR_LAKE_TABLES", over)
    table.write_properties("orders-by-properties")
    found = json.loads(run(capsys, "explain", str(table.path), "-o", "json")[1])
    (rules,) = (row["rules"] for row in found["services"] if row["service"] == "compaction")
    assert (found["table"], rules["delta_commits"]) == ("orders-by-properties", 77)


def test_bulk_actions_by_filter_change_the_variable_and_start_runs_once(
    table: HandMadeTable, variable: None, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow.models.variable import Variable

    from airflow_lake_provider.hudi.base_path import table_id_of
    from airflow_lake_provider.manager.db.rows import Notice, Source
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    registry = open_registry()
    path = str(table.path)
    registry.mark_dirty(Notice(path, "bulk_orders", Source.HINT, (), "shop", "bulk_ann"))

    def bulk(*words: str) -> list[dict[str, Any]]:
        code, text = run(capsys, "bulk", *words, "-o", "json")
        rows: list[dict[str, Any]] = json.loads(text)
        assert code == int(any(row["verdict"] == "refused" for row in rows))
        return rows

    def active() -> list[Any]:
        with registry.transaction() as session:
            return list(AirflowRunGateway().find_active_runs(session, table_id_of(path)))

    before = Variable.get("lake_tables")
    assert bulk("pause", "--owner", "bulk_ann", "--dry-run")[0]["verdict"] == "done"
    assert Variable.get("lake_tables") == before
    assert bulk("pause", "--owner", "bulk_ann", "--for", "2h", "--reason", "a move")[0]["verdict"] == "done"
    (entry,) = json.loads(Variable.get("lake_tables"))["tables"]
    assert (entry["base_path"], entry["paused"].partition(": ")[2]) == (path, "a move")
    (row,) = bulk("run", "--match", "BULK_ord", "--service", "clean")
    assert (row["verdict"], row["reason"].endswith("a move: resume it first")) == ("refused", True)
    assert bulk("resume", path)[0]["verdict"] == "done"
    assert json.loads(Variable.get("lake_tables")) == json.loads(before) | {"tables": []}
    assert bulk("run", "bulk_orders", "--service", "clean", "--dry-run")[0]["verdict"] == "done"
    assert active() == []
    (row,) = bulk("run", "bulk_orders", "--service", "clean")
    assert [one.run_id for one in active()] == [row["run_id"]]
    assert bulk("run", "bulk_orders", "--service", "clean")[0]["verdict"] == "nothing"
    assert bulk("snooze", "--match", "bulk_orders", "--for", "1d")[0]["reason"] == "no problem"
    assert "Give either tables, or --match" in run(capsys, "bulk", "run", "--service", "clean")[1]
    assert "No table matches" in run(capsys, "bulk", "resume", "--label", "none")[1]
    registry.forget(table_id_of(path))


def test_tables_lists_the_registry(table: HandMadeTable, capsys: pytest.CaptureFixture[str]) -> None:
    from airflow_lake_provider.manager.db.rows import Notice, Source
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    open_registry().mark_dirty(Notice(str(table.path), "cli-orders", Source.HINT))
    code, output = run(capsys, "tables")
    assert code == 0
    assert output.split()[:4] == ["table", "state", "since", "marks"]
    assert re.search(rf"cli-orders +new +- +- +- +0 B +- +- +\d{{4}}-\S+ \S+ \S+ +{re.escape(str(table.path))}", output)
    assert run(capsys, "explain", "cli-orders")[0] == 0
    assert "did you mean cli-orders" in run(capsys, "explain", "cli-order")[1]
    rows = json.loads(run(capsys, "tables", "-o", "json")[1])
    assert [row["state"] for row in rows if row["table"] == "cli-orders"] == ["new"]
    assert re.search(r"tables +\d+: .*\d+ new", run(capsys, "overview")[1])
    assert json.loads(run(capsys, "overview", "-o", "json")[1])["states"]["new"] >= 1
    assert run(capsys, "backlog", "-o", "json")[0] == 0


def test_init_checks_the_installation_prints_what_it_lacks_and_writes_nothing(
    table: HandMadeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow_lake_provider.config.tables_file import parse_tables_file

    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "no-spark"))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    own = '[{"name": "dags-folder", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {}}]'
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", own)
    before = sorted(tmp_path.rglob("*"))
    wanted = tmp_path / "lake.yaml"
    code, output = run(capsys, "init", "--table", str(table.path), "--write", str(wanted))
    assert (code, "nothing was written" in output) == (1, True)
    assert sorted(tmp_path.rglob("*")) == before
    assert re.search(r"Spark +WRONG +no spark-submit in SPARK_HOME=", output)
    assert re.search(r"connection +ok +spark_default: local\[2\]", output)
    assert re.search(r"DAG bundles +WRONG +the shipped DAGs are not among them: dags-folder", output)
    assert re.search(r'"name": "dags-folder".*\n.*"name": "lake"', output)
    assert "hoodie.write.commit.callback.http.url=" in output
    assert "callback-secret" not in output
    parts = output.split("--- for ")
    (text,) = [part.partition("\n")[2] for part in parts if part.startswith("the tables file")]
    policy = parse_tables_file(text, "lake.yaml").policy_for(str(table.path), "orders")
    assert policy.mode == "observe"
    checks = {row["check"]: row["state"] for row in json.loads(run(capsys, "init", "-o", "json")[1])}
    assert (checks["Airflow"], checks["tokens"], checks["Spark"]) == ("ok", "ok", "WRONG")
    assert "compaction.async.enabled' = 'false'" in run(capsys, "init", "--table", "/lake/new", "--engine", "flink")[1]
