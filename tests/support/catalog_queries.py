"""The handle of a user of the catalog: Spark SQL in a process of its own, which asks a metastore where tables are."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from local_stack import hudi_bundle

READER = Path(__file__).parent / "catalog_reader.py"
DATABASE = "shop"


class CatalogReader:
    """Spark SQL in a process of its own, which knows the catalog and nothing else."""

    def __init__(self, metastore: str, folder: Path) -> None:
        conf = {**hudi_bundle.bundle_first(), "spark.sql.warehouse.dir": str(folder / "warehouse")}
        self._log = (folder / "reader.log").open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            [str(hudi_bundle.SPARK_PYTHON), str(READER), metastore, json.dumps(conf)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=folder,
        )
        assert self._answer() == "ready"

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement. Raises AssertionError with Spark's message where it fails."""
        assert self._process.stdin is not None
        print(json.dumps(statement), file=self._process.stdin, flush=True)
        answer = self._answer()
        assert "error" not in answer, answer["error"]
        return [tuple(row) for row in answer["rows"]]

    def rows_by_city(self, name: str) -> dict[str, int]:
        """Return how many rows each partition has."""
        self.query(f"REFRESH TABLE {DATABASE}.{name}")
        return dict(self.query(f"SELECT city, count(*) FROM {DATABASE}.{name} GROUP BY city"))

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(('"', "{")):
                return json.loads(line)
        raise AssertionError("the reader has ended")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()
