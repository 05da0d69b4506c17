"""One real Airflow home and SQLite database for the whole run, prepared before Airflow is imported."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HOME = Path(tempfile.mkdtemp(prefix="lake-airflow-"))
LAKE = HOME / "lake"
LAKE.mkdir()
CALLBACK_TOKEN = "callback-secret"
SERVICE_TOKEN = "service-secret"

# Airflow reads its configuration when it is first imported, so this must stand at the top of the run.
os.environ.update(
    {
        "AIRFLOW_HOME": str(HOME),
        "AIRFLOW__API_AUTH__JWT_SECRET": "s" * 64,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # Imports take their time on a busy machine.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": os.environ.get("LAKE_DATABASE_URL") or f"sqlite:///{HOME}/airflow.db",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(
            [
                {
                    "name": "lake",
                    "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
                    "kwargs": {"path": str(ROOT / "dags")},
                }
            ]
        ),
        "AIRFLOW__LAKE__CALLBACK_TOKENS": CALLBACK_TOKEN,
        "AIRFLOW__LAKE__SERVICE_TOKENS": SERVICE_TOKEN,
        "AIRFLOW__LAKE__ALLOWED_ROOTS": f"{LAKE},/lake,{tempfile.gettempdir()}",
        "AIRFLOW__LAKE__WORK_DIR": str(HOME / "work"),
        "AIRFLOW__LAKE__MANAGER_PATIENCE_S": "2",
        # Tests drain when they want.
        "AIRFLOW__LAKE__LOOP_ENABLED": "False",
    }
)


@pytest.fixture(scope="session", autouse=True)
def airflow_database() -> Iterator[None]:
    """Create Airflow's database as `airflow db migrate` does, with the shipped DAGs in it."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.db import upgradedb
    from airflow.utils.session import create_session

    upgradedb()
    bag = DagBag(dag_folder=str(ROOT / "dags"))
    assert bag.import_errors == {}
    with create_session() as session:
        session.add(DagBundleModel(name="lake"))
    sync_bag_to_db(bag, "lake", None)
    yield
    shutil.rmtree(HOME, ignore_errors=True)
