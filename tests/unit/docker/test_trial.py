"""The trial of docker/: secrets are made by a command, and a stock writer comes along."""

from __future__ import annotations

import importlib.util
import re
import stat
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from cryptography.fernet import Fernet

from airflow_lake_provider.cli.writer_settings import writer_options
from airflow_lake_provider.config.tables_file import load_tables_file
from airflow_lake_provider.job_contract import find_lock_problem

DOCKER = Path(__file__).parents[3] / "docker"
EXAMPLE = (DOCKER / ".env.example").read_text(encoding="utf-8")


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"lake_docker_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".env.example").write_text(EXAMPLE, encoding="utf-8")
    return tmp_path


def values_of(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines if line and line[0] != "#")}


def test_each_secret_is_made_and_what_has_a_default_stays(folder: Path) -> None:
    load(DOCKER / "make_env.py").main(folder)
    made, example = values_of(folder / ".env"), values_of(DOCKER / ".env.example")
    compose = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
    secrets = set(re.findall(r"\$\{(\w+):\?", compose))
    assert {name for name in made if made[name] != example[name]} == secrets
    assert len({made[name] for name in secrets}) == len(secrets)
    Fernet(made["FERNET_KEY"])
    assert len(made["JWT_SECRET"]) >= 64
    assert all(re.fullmatch(r"\w{20,}", made[name]) for name in secrets - {"FERNET_KEY"})
    assert stat.S_IMODE((folder / ".env").stat().st_mode) == 0o600


def test_secrets_that_are_there_stay(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / ".env").write_text("FERNET_KEY=opens-what-the-database-holds\n", encoding="utf-8")
    load(DOCKER / "make_env.py").main(folder)
    assert values_of(folder / ".env") == {"FERNET_KEY": "opens-what-the-database-holds"}
    assert "stays as it is" in capsys.readouterr().out


class RecordedWrites:
    """Plays a session of Spark, and keeps with which options it wrote where."""

    def __init__(self) -> None:
        self.writes: list[tuple[str, dict[str, str]]] = []
        self.chosen: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return self if name in ("builder", "write") else lambda *_: self

    def options(self, **options: str) -> RecordedWrites:
        self.chosen = options
        return self

    def save(self, path: str) -> None:
        self.writes.append((path, self.chosen))


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> RecordedWrites:
    recorded = RecordedWrites()
    monkeypatch.setitem(sys.modules, "pyspark.sql", SimpleNamespace(SparkSession=recorded))
    monkeypatch.setenv("LAKE_CALLBACK_TOKENS", "the-first, the-second")
    monkeypatch.setenv("LAKE_ROOT", "s3a://lake/tables")
    return recorded


def test_stock_writer_has_the_settings_of_writers_and_the_lock_of_the_services(session: RecordedWrites) -> None:
    load(DOCKER / "jobs" / "orders.py").main()
    (path, options), *more = session.writes
    policy = load_tables_file(str(DOCKER / "lake" / "tables.yaml")).defaults
    assert len(more) + 1 > policy.compaction.delta_commits
    assert path == "s3a://lake/tables/orders"
    lock = options["hoodie.write.lock.provider"]
    wanted = writer_options("http://api-server:8080/v1/hoodie/callback", lock)
    wanted |= {"hoodie.write.commit.callback.http.api.key": "the-first", "hoodie.table.name": "orders"}
    wanted |= policy.hudi_options
    assert {key: options.get(key) for key in wanted} == wanted
    assert find_lock_problem(options) is None
