"""A real Hive metastore, a table that is registered there, and two judges: the metastore's client, and Spark SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from airflow_lake_provider.job_contract import Mode, Service, ServiceRequest, ServiceResult
from local_stack.hive import LocalMetastore
from tests.support.catalog_queries import DATABASE, CatalogReader
from tests.support.hudi_tables import Table, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[LocalMetastore]:
    """Start a metastore; `spark` makes it skip where Spark or Hudi are missing."""
    server = LocalMetastore(tmp_path_factory.mktemp("hive"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def reader(metastore: LocalMetastore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogReader]:
    """Start Spark SQL next to the test's own session."""
    found = CatalogReader(metastore.address, tmp_path_factory.mktemp("reader"))
    yield found
    found.close()


@dataclass(frozen=True)
class Registered:
    """A table, and what a metastore has of it."""

    spark: SparkSession
    metastore: LocalMetastore
    table: Table

    @property
    def name(self) -> str:
        return self.table.written.name

    def request(self, **options: str) -> ServiceRequest:
        own = {"lake.sync.metastore": self.metastore.address, "lake.sync.database": DATABASE, **options}
        return ServiceRequest(Service.SYNC, Mode.EXECUTE, (), own)

    def sync(self, hudi_options: dict[str, str] | None = None, **options: str) -> ServiceResult:
        """Run the service, without a lock."""
        own = dict(self.request(**options).options)
        request = self.table.request(
            Mode.EXECUTE, options=hudi_options or {}, service=Service.SYNC, service_options=own
        )
        return run(self.spark, request)

    def partitions(self, suffix: str = "") -> list[str]:
        """Return the values of the partitions, as the metastore itself lists them."""
        most = 10_000
        found = self.ask(lambda client: client.listPartitions(DATABASE, f"{self.name}{suffix}", most))
        return sorted(str(one.getValues().get(0)) for one in found)

    def columns(self) -> list[str]:
        """Return the columns, those of the partitions at the end."""
        return [str(one.getName()) for one in self.ask(lambda client: client.getSchema(DATABASE, self.name))]

    def tables(self) -> list[str]:
        """Return all tables of the database."""
        return sorted(map(str, self.ask(lambda client: client.getAllTables(DATABASE))))

    def ask(self, question: Callable[[Any], Any]) -> Any:
        """Return the answer of the metastore's own client."""
        hive = self.spark._jvm.org.apache.hadoop.hive
        conf = hive.conf.HiveConf()
        conf.set("hive.metastore.uris", self.metastore.address)
        client = hive.metastore.HiveMetaStoreClient(conf)
        try:
            return question(client)
        finally:
            client.close()
