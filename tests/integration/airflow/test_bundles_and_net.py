"""The shipped DAGs next to a user's own, and what is said while one of them is paused."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tables import HandMadeTable

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]


def parse_by_airflow(monkeypatch: pytest.MonkeyPatch, setting: str) -> dict[str, Path]:
    """Return the folder of each bundle, as Airflow reads the setting."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(setting)
    monkeypatch.setenv(
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", parser["dag_processor"]["dag_bundle_config_list"]
    )
    return {bundle.name: bundle.path for bundle in DagBundlesManager().get_all_dag_bundles()}


def test_documented_setting_keeps_the_users_dags(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow import settings

    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (setting,) = re.findall(r"^\[dag_processor\]\ndag_bundle_config_list = .*?(?=^```)", text, re.M | re.S)
    found = parse_by_airflow(monkeypatch, setting)
    assert found == {"dags-folder": Path(settings.DAGS_FOLDER), "lake": ROOT / "dags"}


def test_command_adds_the_shipped_dags_to_what_is_configured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from airflow.cli.cli_parser import get_parser

    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    own = [{"name": "mine", "classpath": local, "kwargs": {"path": str(tmp_path), "refresh_interval": 7}}]
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps(own))
    for _ in range(2):  # of what it printed itself, it makes the same
        arguments = get_parser().parse_args(["lake", "dag-bundles"])
        arguments.func(arguments)
        printed = capsys.readouterr().out
        found = parse_by_airflow(monkeypatch, printed[printed.index("[dag_processor]") :])
        assert found == {"mine": tmp_path, "lake": ROOT / "dags"}


def test_shipped_dags_begin_unpaused_but_replication() -> None:
    """Airflow's own default creates DAGs paused."""
    from airflow.configuration import conf
    from airflow.dag_processing.dagbag import DagBag

    by_hand = {"lake_replication", "lake_streams"}
    assert conf.getboolean("core", "dags_are_paused_at_creation")
    paused = {name: dag.is_paused_upon_creation for name, dag in DagBag(dag_folder=str(ROOT / "dags")).dags.items()}
    assert {name for name, is_paused in paused.items() if is_paused is not False} == by_hand
    assert {name for name, model in dag_models().items() if model} == by_hand


def dag_models() -> dict[str, bool]:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return {
            str(name): bool(paused) for name, paused in session.execute(select(DagModel.dag_id, DagModel.is_paused))
        }


@pytest.fixture
def paused_dags() -> Iterator[None]:
    set_paused(is_paused=True)
    yield
    set_paused(is_paused=False)


def set_paused(*, is_paused: bool) -> None:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        dags = DagModel.dag_id.in_(("lake_table_service", "lake_watch"))
        session.execute(update(DagModel).where(dags).values(is_paused=is_paused))


@pytest.mark.usefixtures("paused_dags")
def test_a_paused_dag_is_said_by_health_and_by_the_commands(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.cli.cli_parser import get_parser
    from fastapi.testclient import TestClient

    from airflow_lake_provider.manager.api.app import create_app
    from airflow_lake_provider.plugins.lake_plugin import open_services

    health: Any = TestClient(create_app(open_services)).get("/health").json()
    assert "DAG lake_table_service is paused, so no service runs: unpause it" in "\n".join(health["problems"])
    assert "DAG lake_watch is paused" in "\n".join(health["problems"])
    # Another Airflow on this machine must not answer.
    monkeypatch.setenv("LAKE_NO_MANAGER", "1")
    table = HandMadeTable.create(tmp_path / "orders")
    for words in (["tables"], ["doctor", str(table.path)]):
        arguments = get_parser().parse_args(["lake", *words])
        arguments.func(arguments)
        assert "DAG lake_table_service is paused" in capsys.readouterr().err
