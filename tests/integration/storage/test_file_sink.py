"""The file sink of replication on a real HDFS."""

from __future__ import annotations

import pytest

from tests.integration.storage.lakes import HdfsLake
from tests.support.file_sink_contract import FileSinkContract


class TestJsonLinesOnHdfs(FileSinkContract):
    @pytest.fixture(autouse=True)
    def _lake(self, hdfs_lake: HdfsLake) -> None:
        self.url = f"{hdfs_lake.cluster.url}/changes"


class TestParquetOnHdfs(TestJsonLinesOnHdfs):
    form = "parquet"
