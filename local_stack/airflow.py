"""A real Airflow on this machine: API server, scheduler, DAG processor and triggerer as four processes.

Not `airflow standalone`: that opens log servers on all interfaces and leaves its children behind when it is stopped.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from local_stack.hudi_bundle import JAR as HUDI_JAR
from local_stack.hudi_bundle import find_spark_home, scratch_env
from local_stack.processes import NotReadyError, ServerProcess, free_port, start, wait_until

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
_TRIES = 4
_NO_TLS = False
"""Or httpx reads all certificates for each question: most of what it costs to wait for something."""
_TWO_COMMANDS = """
import sys
from airflow.__main__ import main
for words in sys.argv[1:]:
    sys.argv = ["airflow", *words.split()]
    main()
"""
"""To import Airflow takes longer than most commands."""
_COLLECT_SELDOM = """
import gc, sys
gc.set_threshold(100_000, 20, 100)
from airflow.__main__ import main
sys.argv[0] = "airflow"
main()
"""
"""A fifth of a start of Airflow is otherwise spent in search of garbage among all that was imported, which has none."""
ended_by_themselves: list[str] = []
"""Servers of this process's Airflows that had to be started again, each with the end of its log."""


@dataclass(frozen=True)
class MigratedHome:
    """What `airflow db migrate` leaves: Airflow's own configuration, and the database where that is a file."""

    home: Path
    config: str
    database: bytes

    @classmethod
    def of(cls, airflow: LocalAirflow) -> MigratedHome:
        config = (airflow.home / "airflow.cfg").read_text()
        return cls(airflow.home, config, b"" if airflow.database_url else (airflow.home / "airflow.db").read_bytes())


@dataclass
class LocalAirflow:
    """One Airflow in its own home folder. `settings` are further environment variables (`AIRFLOW__...`).

    `more_dags` are folders besides the shipped DAGs, by bundle name.
    """

    home: Path
    allowed_roots: tuple[Path, ...]
    tables_file: Path | None = None
    database_url: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    more_dags: dict[str, Path] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    callback_token: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    service_token: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    no_logs_port: int = field(default_factory=free_port)
    """Where the API server asks for logs that it does not find: no component serves them, and on the usual port one of
    the machine's own Airflow may."""
    servers: dict[str, ServerProcess] = field(default_factory=dict)
    collects_seldom: bool = False
    """For processes that live for minutes only."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def callback_url(self) -> str:
        return f"{self.url}/v1/hoodie/callback"

    def env(self) -> dict[str, str]:
        """Return the whole environment of every component."""
        classpath = "airflow.dag_processing.bundles.local.LocalDagBundle"
        bundles = [
            {"name": name, "classpath": classpath, "kwargs": {"path": str(folder)}}
            for name, folder in {"lake": ROOT / "dags", **self.more_dags}.items()
        ]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
        spark_bin = ROOT / ".venv-spark" / "bin"
        spark_python = str(spark_bin / "python")
        return (
            inherited
            | {
                "AIRFLOW_HOME": str(self.home),
                "PATH": f"{spark_bin}{os.pathsep}{self.bin()}{os.pathsep}{os.environ.get('PATH', '')}",
                # This checkout, wherever the environment was installed from.
                "PYTHONPATH": str(ROOT),
                "SPARK_HOME": str(find_spark_home(Path(spark_python))),
                "PYSPARK_PYTHON": spark_python,
                "PYSPARK_DRIVER_PYTHON": spark_python,
                "SPARK_LOCAL_IP": "127.0.0.1",
                **scratch_env(self.home / "tmp"),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
                "AIRFLOW__CORE__PARALLELISM": "4",
                "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
                "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
                "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
                "AIRFLOW__API__HOST": "127.0.0.1",
                "AIRFLOW__API__PORT": str(self.port),
                "AIRFLOW__API__BASE_URL": self.url,
                "AIRFLOW__API__WORKERS": "1",
                "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self.no_logs_port),
                "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self.no_logs_port),
                "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
                "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
                "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
                "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
                "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
                # So that a running job survives ten minutes without the API server.
                "AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS": "180",
                "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "900",
                "AIRFLOW__EXECUTION_API__JWT_EXPIRATION_TIME": "3600",
                # A run that the manager creates waits for the scheduler's next pass, up to a second unless set.
                "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.database_url or f"sqlite:///{self.home}/airflow.db",
                "AIRFLOW__LAKE__CALLBACK_TOKENS": self.callback_token,
                "AIRFLOW__LAKE__SERVICE_TOKENS": self.service_token,
                "AIRFLOW__LAKE__ALLOWED_ROOTS": ",".join(str(root) for root in self.allowed_roots),
                "AIRFLOW__LAKE__TABLES_FILE": str(self.tables_file or ""),
                "AIRFLOW__LAKE__WORK_DIR": str(self.home / "lake"),
                "AIRFLOW__LAKE__SPARK_JARS": str(HUDI_JAR),
                "AIRFLOW__LAKE__MAX_ACTIVE_SERVICES": "2",
                "AIRFLOW__LAKE__RETRY_DELAY_S": "5",
                "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            }
            | self.settings
        )

    def migrate(self, *, with_dags: bool = False) -> None:
        """Create the database with the provider's tables; `with_dags`: and with the DAGs that a DAG processor finds."""
        (self.home / "tmp").mkdir(parents=True, exist_ok=True)
        command = [str(self.bin() / "airflow"), "db", "migrate"]
        if with_dags:
            command = [sys.executable, "-c", _TWO_COMMANDS, "db migrate", "dags reserialize"]
        result = subprocess.run(
            command,
            env=self.env(),
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise RuntimeError(f"airflow db migrate failed:\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}")

    def copy_migrated(self, source: MigratedHome) -> None:
        """Take over what `migrate` made for another home: its 12 s are the same each time."""
        (self.home / "tmp").mkdir(parents=True, exist_ok=True)
        (self.home / "airflow.cfg").write_text(source.config.replace(str(source.home), str(self.home)))
        if not self.database_url:
            (self.home / "airflow.db").write_bytes(source.database)

    def start(self, components: tuple[str, ...] = COMPONENTS, timeout_s: float = 180.0) -> None:
        """Start the components and wait until the manager answers in the API server."""
        for component in components:
            self.start_component(component)
        if "api-server" in components:
            self.wait_for_manager(timeout_s)

    def start_component(self, component: str, more_env: Mapping[str, str] | None = None) -> ServerProcess:
        """Start one component; `more_env` is for it alone."""
        server = start(
            component,
            [*self._program(), component, *self.flags_of(component)],
            self.home / "logs" / f"{component}.log",
            env=self.env() | self._sqlite_env(component) | dict(more_env or {}),
            cwd=self.home,
        )
        self.servers[component] = server
        return server

    def flags_of(self, component: str) -> tuple[str, ...]:
        """Return the flags that a component is started with."""
        return ("--skip-serve-logs",) if component in {"scheduler", "triggerer"} else ()

    def _program(self) -> list[str]:
        return [sys.executable, "-c", _COLLECT_SELDOM] if self.collects_seldom else [str(self.bin() / "airflow")]

    def bin(self) -> Path:
        """Return the folder of the programs."""
        return BIN

    def _sqlite_env(self, component: str) -> dict[str, str]:
        """Let all but the API server wait a minute for a locked SQLite; otherwise a scheduler ends after five seconds.

        The API server blocks its own loop: Airflow 3.3 writes its audit log on it, and a request that holds the lock
        meanwhile commits on it. Only the time-out undoes that, so there it stays at SQLite's five seconds.
        """
        if self.database_url or component == "api-server":
            return {}
        return {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db?timeout=60"}

    def start_timeline_server(self, timeout_s: float = 120.0) -> ServerProcess:
        """Start a timeline server of its own at `[lake] timeline_server_url`, and wait until it answers."""
        url = self.settings["AIRFLOW__LAKE__TIMELINE_SERVER_URL"]
        server = start(
            "timeline-server",
            [*self._program(), "lake", "timeline-server", "--port", url.rpartition(":")[2]],
            self.home / "logs" / "timeline-server.log",
            env=self.env() | self._sqlite_env("timeline-server"),
            cwd=self.home,
        )
        self.servers["timeline-server"] = server
        wait_until(lambda: self.timeline_health() is not None, timeout_s, "the timeline server", [server])
        return server

    def timeline_health(self) -> dict[str, Any] | None:
        """Return the timeline server's health, None while it does not answer."""
        return self.get("/v1/hoodie/timeline/health", base=self.settings["AIRFLOW__LAKE__TIMELINE_SERVER_URL"])

    def wait_for_manager(self, timeout_s: float = 180.0) -> None:
        wait_until(self.manager_answers, timeout_s, "the lake manager", [self.servers["api-server"]])

    def wait_for_dags(self, timeout_s: float = 180.0) -> None:
        """Wait until the shipped DAGs are parsed."""

        def parsed() -> bool:
            answer = self.airflow_get("/api/v2/dags")
            return answer is not None and {dag["dag_id"] for dag in answer["dags"]} >= {
                "lake_table_service",
                "lake_watch",
            }

        wait_until(parsed, timeout_s, "the shipped DAGs", list(self.servers.values()))

    def wait_until(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until `ready` is true, under supervision as in production: servers that end by themselves come back.

        Not the API server, where the manager runs. Raises NotReadyError that names what ended, and what runs.
        """

        def poll() -> bool:
            if "api-server" in self.revive():
                raise NotReadyError(f"{what}: {ended_by_themselves[-1]}")
            return ready()

        try:
            wait_until(poll, timeout_s, what)
        except NotReadyError as error:
            raise NotReadyError(f"{error}\n{self.describe()}") from None

    def revive(self) -> list[str]:
        """Restart components that ended by themselves; return their names.

        The scheduler of Airflow 3.3 does when a task fails at the moment in which its heartbeat is found missing
        ("UNIQUE constraint failed: task_instance_history..."), and may when its clock is moved ("Invalid argument", of
        a sleep).
        """
        ended = [name for name in COMPONENTS if name in self.servers and self.servers[name].has_ended_by_itself()]
        for name in ended:
            tail = self.servers[name].log_tail()
            ended_by_themselves.append(f"{name} of {self.home.parent.name} ended by itself\n{tail}")
            self.start_component(name)
        return ended

    def describe(self) -> str:
        """Return what does not run and what does, and each server's last lines."""
        answer = self.airflow_get("/api/v2/dags/~/dagRuns", limit=20, order_by="-run_after")
        runs = [] if answer is None else answer["dag_runs"]
        lines = [f"{run['state']}: {run['dag_id']} {run['dag_run_id']}" for run in runs]
        lines += [f"--- {name}\n{server.log_tail(10)}" for name, server in self.servers.items()]
        return "\n".join(lines)

    def manager_answers(self) -> bool:
        answer = self.get("/v1/hoodie/health")
        return answer is not None and answer.get("status") == "ok"

    def get(self, path: str, base: str = "", **params: Any) -> dict[str, Any] | None:
        """Return the JSON of a GET, None while nothing sensible answers."""
        try:
            response = httpx.get(
                (base or self.url) + path,
                params=params,
                headers={"Authorization": f"Bearer {self.service_token}"},
                timeout=20,
                verify=_NO_TLS,
            )
            return dict(response.json()) if response.is_success else None
        except (httpx.HTTPError, ValueError):
            return None

    def tables(self) -> list[dict[str, Any]]:
        """Return the manager's registry."""
        answer = self.get("/v1/hoodie/tables")
        return [] if answer is None else list(answer["tables"])

    def service_runs(self) -> list[dict[str, Any]]:
        """Return the runs of the service DAG, oldest first."""
        answer = self.airflow_get("/api/v2/dags/lake_table_service/dagRuns", limit=100, order_by="run_after")
        return [] if answer is None else list(answer["dag_runs"])

    def airflow_get(self, path: str, **params: Any) -> dict[str, Any] | None:
        """Return the JSON of a GET to Airflow's own API, which is open in this set-up."""
        try:
            response = httpx.get(self.url + path, params=params, timeout=20, verify=_NO_TLS)
            return dict(response.json()) if response.is_success else None
        except (httpx.HTTPError, ValueError):
            return None

    def change(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        """Change something by Airflow's own API; retry when the server could not, which SQLite causes."""
        for left in reversed(range(_TRIES)):
            try:
                response = httpx.request(method, self.url + path, json=dict(body), timeout=30, verify=_NO_TLS)
            except httpx.TimeoutException:
                if not left:
                    raise
                continue
            if response.is_success or (response.status_code == httpx.codes.CONFLICT and left < _TRIES - 1):
                return  # an earlier try may have made it all the same
            if not response.is_server_error or not left:
                raise RuntimeError(f"{method} {path}: {response.status_code} {response.text[:2000]}")
            time.sleep(1)

    def pause(self, dag_id: str, *, is_paused: bool = True) -> None:
        """Pause a DAG, or unpause it."""
        self.change("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": is_paused})

    def stop(self) -> None:
        """Stop every component, and its children: the API server last, as the others report to it."""
        for component, server in self.servers.items():
            if component != "api-server":
                server.terminate()
        for component in sorted(self.servers, key="api-server".__eq__):
            self.servers.pop(component).stop()

    def remove(self) -> None:
        """Delete the home folder."""
        shutil.rmtree(self.home, ignore_errors=True)
