"""The same claims about runs, instances, limits and leases, with Airflow's metadata on MariaDB.

Airflow 3.3 supports MySQL, of which Debian has no server; MariaDB's is the closest one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from local_stack.debian_packages import PackagesMissingError
from local_stack.mariadb import LocalMariaDb, client_env

pytestmark = [pytest.mark.integration, pytest.mark.soak(covered_by="tests/integration/airflow/test_postgres.py")]

FOLDER = Path(__file__).parent
SAME_CLAIMS = ("test_service_runs.py", "test_run_gateway.py", "test_database.py")
OF_AIRFLOW = "ignore:implicitly coercing SELECT object:sqlalchemy.exc.SAWarning"
"""Its query of a DAG's newest version, on MySQL alone."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMariaDb]:
    server = LocalMariaDb(tmp_path_factory.mktemp("mariadb"))
    try:
        client_env()
        server.start()
    except PackagesMissingError as error:
        pytest.skip(str(error))
    yield server
    server.stop()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="Debian's mysqlclient is for Python 3.11")
def test_airflow_on_mariadb_keeps_the_same_promises(server: LocalMariaDb) -> None:
    files = [str(FOLDER / name) for name in SAME_CLAIMS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", OF_AIRFLOW, *files]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "PYTEST"))}
    env |= client_env() | {
        "LAKE_DATABASE_URL": server.url.replace("pymysql", "mysqldb"),
        # Only a driver that is not installed could ask MariaDB here, and nothing of these files asks.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": "sqlite+aiosqlite://",
    }
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
    require_long_and_exact_texts(server)


def require_long_and_exact_texts(server: LocalMariaDb) -> None:
    """A large table's decisions fit, and names that differ by case alone are two."""
    engine = create_engine(server.url)
    ask = text(
        "select data_type, collation_name from information_schema.columns "
        "where table_name like 'lake\\_%' and collation_name is not null"
    )
    insert = text("insert into lake_limit (name, held_ms) values (:name, 0)")
    with engine.begin() as connection:
        assert {tuple(row) for row in connection.execute(ask)} == {
            ("varchar", "utf8mb4_bin"),
            ("longtext", "utf8mb4_bin"),
        }
        for name in ("pool:spark", "pool:Spark", "pool:spärk"):
            connection.execute(insert, {"name": name})
    engine.dispose()
