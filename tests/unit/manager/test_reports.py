"""`lake`: reports over HTTP from a manager, without Airflow in the process, and what is said when there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient

from airflow_lake_provider.cli import command, lake_reports
from airflow_lake_provider.cli.lake_reports import warn_of_all_tables
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.read_model import OverviewReport
from airflow_lake_provider.manager.runs.airflow_runs import SERVICE_DAG_ID, DagState, LakeDags
from airflow_lake_provider.shared.http_answer import ServerAnswer
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import SERVICE_TOKEN

ROOT = Path(__file__).resolve().parents[3]
BEARER = {"Authorization": f"Bearer {SERVICE_TOKEN}"}

CONSOLE_SCRIPT = """
import sys
before = set(sys.modules)
from airflow_lake_provider.cli.main import main
main()
found = {name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names
sys.exit(0 if found == {"airflow_lake_provider"} else f"imported: {sorted(found)}")
"""
"""What `lake` runs; it fails when that has imported more than the standard library and this package."""


@dataclass
class Manager:
    """The manager's app behind a real socket."""

    client: httpx.Client
    url: str
    home: Path
    asked: list[str] = field(default_factory=list)

    def lake(self, *words: str, token: str = SERVICE_TOKEN, zone: str = "UTC") -> subprocess.CompletedProcess[str]:
        (self.home / "airflow.cfg").write_text(f"[lake]\nservice_tokens = {token}\nmanager_url = {self.url}\n")
        return subprocess.run(
            [sys.executable, "-c", CONSOLE_SCRIPT, *words],
            env={"AIRFLOW_HOME": str(self.home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TZ": zone},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def manager(services: ManagerServices, tmp_path: Path) -> Iterator[Manager]:
    client = TestClient(create_app(lambda: services), raise_server_exceptions=False)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            where = urlsplit(self.path)
            made.asked.append(where.path)
            headers = {"Authorization": self.headers["Authorization"]}
            answer = client.get(where.path.removeprefix("/v1/hoodie"), params=parse_qs(where.query), headers=headers)
            self.send_response(answer.status_code)
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    made = Manager(client, f"http://127.0.0.1:{server.server_port}", tmp_path)
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def test_lake_prints_the_managers_reports_without_airflow(
    manager: Manager,
    registry: Registry,
    lake: Path,
) -> None:
    table = HandMadeTable.create(lake / "orders")
    for second in range(1, 7):
        table.commit(second)
    empty = manager.lake("tables")
    assert (empty.returncode, "no table is registered yet" in empty.stdout) == (0, True)
    registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT, database="shop"))
    listed = manager.lake("tables", zone="Europe/Berlin")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.splitlines()[1].split()[:3] == ["shop.orders", "new", "-"]
    assert "CET" in listed.stdout or "CEST" in listed.stdout
    explained = json.loads(manager.lake("explain", "shop.orders", "-o", "json").stdout)
    assert explained["base_path"] == str(table.path)
    found = {row["service"]: row["found"] for row in explained["services"]}
    assert found["compaction"]["delta_commits"] == 6
    assert explained["settings"] == []
    assert "requested" in manager.lake("runs", "orders").stdout
    assert json.loads(manager.lake("overview", "-o", "json").stdout)["states"]["new"] == 1
    assert "no table has log files" in manager.lake("backlog").stdout
    wrong = manager.lake("explain", "order")
    assert (wrong.returncode, wrong.stderr.strip()) == (
        1,
        "No table 'order' in the registry: did you mean orders?",
    )


@pytest.mark.parametrize("words", [["overview"], ["tables"], ["backlog"], ["runs", "orders"], ["explain", "orders"]])
def test_console_script_imports_neither_airflow_nor_any_other_package(
    manager: Manager, registry: Registry, lake: Path, words: list[str]
) -> None:
    """Airflow's start alone takes about two seconds of CPU, pandas, SQLAlchemy or pydantic some tenths each."""
    table = HandMadeTable.create(lake / "orders")
    table.commit(1)
    registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT))
    done = manager.lake(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert manager.asked


def test_doctor_first_says_what_stops_all_tables_and_who_sent_refused_notices(
    manager: Manager, services: ManagerServices, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    services.refusals.record(401, "no token", "10.0.0.7")
    object.__setattr__(services.reports, "find_lake_dags", lambda: LakeDags({SERVICE_DAG_ID: DagState.PAUSED}))
    monkeypatch.setenv("AIRFLOW__LAKE__MANAGER_URL", manager.url)
    monkeypatch.setenv("AIRFLOW__LAKE__SERVICE_TOKENS", SERVICE_TOKEN)
    warn_of_all_tables()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "! DAG lake_table_service is paused" in shown.err
    assert "! 1 notices were refused with 401 in the last hour, sent by 10.0.0.7 (1)" in shown.err
    # Without a manager the rest comes from the database, and what is not known is said.
    monkeypatch.setenv("AIRFLOW__LAKE__MANAGER_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(command, "open_reports", lambda: services.reports)
    warn_of_all_tables()
    shown = capsys.readouterr()
    assert "! no manager answers at http://127.0.0.1:9" in shown.err
    assert "which notices it refused, is not known here" in shown.err
    assert "! DAG lake_table_service is paused" in shown.err


def test_without_a_manager_the_command_says_so_and_airflow_does_it(manager: Manager) -> None:
    """The stand-in for `airflow` shows what would be run."""
    folder = manager.home / "bin"
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    stand_in = folder / "airflow"
    stand_in.write_text("#!/bin/sh\necho airflow $* $LAKE_NO_MANAGER\n")
    stand_in.chmod(0o755)
    script = f"import sys; sys.executable = {str(folder / 'python')!r}; sys.argv[0] = 'lake'; "
    script += "from airflow_lake_provider.cli.main import main; main()"

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script, *words],
            env={"AIRFLOW_HOME": str(manager.home), "PATH": "", "PYTHONPATH": str(ROOT)} | env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    away = {"AIRFLOW__LAKE__MANAGER_URL": "http://127.0.0.1:9", "AIRFLOW__LAKE__SERVICE_TOKENS": "a-secret-token"}
    found = run("runs", "orders", **away)
    assert found.stdout == "airflow lake runs orders 1\n"
    assert "no manager answers at http://127.0.0.1:9" in found.stderr
    refused = run("tables", **(away | {"AIRFLOW__LAKE__MANAGER_URL": manager.url}))
    assert (refused.stdout, "refuses" in refused.stderr) == ("airflow lake tables 1\n", True)
    assert run("doctor", "orders").stdout == "airflow lake doctor orders 1\n"
    assert run().stdout == "airflow lake 1\n"


def test_command_reads_a_manager_of_another_release_as_far_as_both_know_the_fields(
    services: ManagerServices, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW__LAKE__MANAGER_URL", "http://manager")
    monkeypatch.setenv("AIRFLOW__LAKE__SERVICE_TOKENS", SERVICE_TOKEN)
    body = asdict(services.reports.overview())
    newer = body | {"tables": 1, "states": {"dreaming": 1}, "dreams": [{"of": "orders"}]}
    older = {name: value for name, value in newer.items() if name not in {"days", "oldest_due_ms"}}
    other = {name: value for name, value in body.items() if name != "states"}
    for known in (newer, older):
        monkeypatch.setattr(
            command, "ask_by_http", lambda *_, known=known: ServerAnswer(200, json.dumps(known).encode())
        )
        lake_reports.overview(Namespace(output="text"))
        assert "tables        1: 1 dreaming" in capsys.readouterr().out
    # Where a field is missing that the command needs, it builds the report itself.
    monkeypatch.setattr(command, "ask_by_http", lambda *_: ServerAnswer(200, json.dumps(other).encode()))
    with pytest.raises(command.NoManagerError, match=r"no manager of this release: field 'states' is missing"):
        command.ask(OverviewReport)


def test_reports_need_a_token_and_stay_within_the_allowed_roots(manager: Manager) -> None:
    paths = ("overview", "tables", "runs?table=x", "explanation?table=x")
    assert [manager.client.get(f"/reports/{path}").status_code for path in paths] == [401] * 4
    answer = manager.client.get("/reports/explanation", params={"table": "/etc/orders"}, headers=BEARER)
    assert (answer.status_code, answer.json()["error"]) == (403, "PathNotAllowedError")
    odd = ("[1]", '[10%s, 1, "x"]' % ("0" * 30), '["a\\ud800", "b"]', '["a\\u0000", "b"]', "[" * 100_00, "[1e999]")
    for sort in ("name", "worst", "backlog"):
        for after in odd:
            answer = manager.client.get("/reports/tables", params={"after": after[:2000], "sort": sort}, headers=BEARER)
            assert answer.status_code == 422, after


def test_explanation_names_file_and_line_of_what_is_set(services: ManagerServices, lake: Path, tmp_path: Path) -> None:
    HandMadeTable.create(lake / "orders").commit(1)
    file = tmp_path / "tables.yaml"
    file.write_text("defaults:\n  clean:\n    retained_commits: 3\n")
    client = TestClient(create_app(lambda: replace(services, tables=TablesSource(str(file)))))
    found = client.get("/reports/explanation", params={"table": str(lake / "orders")}, headers=BEARER).json()
    source = "defaults of the tables file"
    assert found["settings"] == [
        {"name": "clean.retained_commits", "value": "3", "source": source, "place": f"{file}:3"}
    ]
