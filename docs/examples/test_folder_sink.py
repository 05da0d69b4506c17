"""The folder sink passes the contract that ships with the package."""

import json
import tempfile
from pathlib import Path

from folder_sink import FolderSink

from airflow_lake_provider.replication.sink import SinkSettings
from airflow_lake_provider.replication.sink_contract import SinkContract

TEMPORARY = tempfile.TemporaryDirectory(prefix="lake-sink-")
FOLDER = Path(TEMPORARY.name)


class TestFolderSink(SinkContract):
    def make_sink(self, stream):
        return FolderSink(SinkSettings(stream, "orders", options={"folder": str(FOLDER)}))

    def read_back(self, stream):
        records = []
        for path in sorted((FOLDER / stream).glob("*.txt")):
            records += [json.loads(line) for line in path.read_text().splitlines()[:-1]]
        return [(record["key"]["id"], (record["after"] or {}).get("value")) for record in records]
