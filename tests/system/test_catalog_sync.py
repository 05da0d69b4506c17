"""A catalog that follows a table by itself: what a stock writer adds, plain Spark SQL sees through a Hive metastore."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_lake_provider.hudi.base_path import table_id_of
from local_stack.airflow import LocalAirflow
from local_stack.hive import LocalMetastore
from local_stack.writer_process import StandingWriter
from tests.support.catalog_queries import DATABASE, CatalogReader
from tests.system.conftest import LOCK_OPTIONS, make_airflow
from tests.system.crashes.driver_watch import Driver, DriverWatch, kill_all

pytestmark = [pytest.mark.system, pytest.mark.soak(covered_by="tests/integration/spark/test_catalog_sync_on_hive.py")]

NAME = "orders"


@dataclass(frozen=True)
class Shop:
    """An Airflow, a writer, a metastore, and a user who knows that metastore alone."""

    airflow: LocalAirflow
    writer: StandingWriter
    metastore: LocalMetastore
    user: CatalogReader
    watch: DriverWatch

    @property
    def path(self) -> str:
        return str(self.airflow.allowed_roots[0] / NAME)

    def write(self, commit: int, note: str = "") -> None:
        """Write a commit: each has orders of a new customer, and so a new partition."""
        callback = {"url": self.airflow.callback_url, "token": self.airflow.callback_token, "headers": {}}
        table = {
            "name": NAME,
            "base_path": self.path,
            "type": "COW",
            "keys": 8,
            "rows": 4,
            "partition_by": "customer",
            "note": note,
        }
        self.writer.write(table, commit, callback, LOCK_OPTIONS)

    def ended(self, state: str) -> list[dict[str, Any]]:
        """Return the table's runs in a state."""
        return [run for run in self.airflow.service_runs() if run["state"] == state]

    def driver_in_a_call(self) -> Driver | None:
        """Return the driver that is connected to the metastore."""
        for driver in self.watch.living(table_id_of(self.path)):
            ports = {link.raddr.port for link in psutil.Process(driver.pid).net_connections() if link.raddr}
            if self.metastore.port in ports:
                return driver
        return None

    def seen(self, where: str = "true") -> int:
        """Return how many rows the user of the catalog sees."""
        self.user.query(f"REFRESH TABLE {DATABASE}.{NAME}")
        ((rows,),) = self.user.query(f"SELECT count(*) FROM {DATABASE}.{NAME} WHERE {where}")
        return int(rows)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder: Path = tmp_path_factory.mktemp("catalog")
    metastore = LocalMetastore(folder / "hive")
    sync = f"{{enabled: true, metastore: '{metastore.address}', database: {DATABASE}}}"
    airflow = make_airflow("catalog-sync", more_tables=f"  - name: {NAME}\n    sync: {sync}\n")
    airflow.settings |= {"AIRFLOW__LAKE__RETRY_DELAY_S": "3"}
    writer = StandingWriter(airflow.home)
    watch = DriverWatch(airflow.home)
    try:
        metastore.start()
        airflow.start()
        writer.wait_until_ready()
        airflow.wait_for_dags()
        user = CatalogReader(metastore.address, folder)
        try:
            yield Shop(airflow, writer, metastore, user, watch)
        finally:
            user.close()
    finally:
        writer.stop()
        airflow.stop()
        watch.close()
        metastore.stop()


def test_new_partition_and_column_reach_the_users_of_the_catalog_though_the_driver_is_killed(shop: Shop) -> None:
    shop.write(0)
    shop.airflow.wait_until(lambda: len(shop.ended("success")) == 1, 240, "the run that registers the table")
    assert shop.seen() == shop.writer.read(shop.path)["rows"] == 8

    assert shop.metastore.server is not None
    process = shop.metastore.server.process.pid
    # The driver waits for the metastore's answer, so it is killed in the middle of its work.
    os.kill(process, signal.SIGSTOP)
    try:
        shop.write(1, note="gift")
        shop.airflow.wait_until(lambda: shop.driver_in_a_call() is not None, 120, "the driver's call of the metastore")
        driver = shop.driver_in_a_call()
        assert driver is not None
        assert kill_all([driver.pid])
    finally:
        os.kill(process, signal.SIGCONT)
    shop.airflow.wait_until(lambda: len(shop.ended("success")) == 2, 240, "the run that another driver completes")

    run = shop.ended("success")[1]
    assert run["conf"]["reason"].endswith("lacks changed columns, new partitions 9"), run["conf"]["reason"]
    path = f"/api/v2/dags/lake_table_service/dagRuns/{run['dag_run_id']}/taskInstances/run_service"
    assert (shop.airflow.airflow_get(path) or {}).get("try_number") == 2
    assert shop.seen() == shop.writer.read(shop.path)["rows"] == 9
    assert shop.seen("note = 'gift'") == shop.writer.read(shop.path, "note = 'gift'")["rows"] == 5
    assert shop.seen("customer = 9 AND note = 'gift'") == 1
    assert not shop.ended("failed")
