"""A stock Hudi writer that stands by: one Spark session, one order per line of its standard input.

`python standing_writer.py conf.json`, by a Python that has pyspark; conf.json is a mapping of Spark settings. Orders
and answers are JSON lines; an answer has `ok`, and `error` when it is false:

    {"do": "write", "table": {fields of lake_writer.WrittenTable}, "commit": 1, "callback": {"url": "..."},
     "hudi_options": {}}                                                            -> {"ok": true, "seconds": 1.5}
    {"do": "read", "base_path": "/lake/orders", "where": "id = 1"} -> {"ok": true, "seconds": 0.8, "rows": 1, "ids": 1,
                                                                        "cents": 500}
    {"do": "put", "base_path": "/lake/orders", "rows": [[1, "Cork"]], "schema": "id long, city string",
     "hudi_options": {}}                                                             -> {"ok": true, "seconds": 1.5}
    {"do": "rows", "base_path": "/lake/orders", "columns": ["id"], "hudi_options": {}}
                                                                     -> {"ok": true, "seconds": 0.8, "rows": [[1]]}
    {"do": "travel", "base_path": "/lake/orders", "instants": ["2026..."]} -> {"ok": true, "seconds": 0.8,
                                                                               "rows": {"2026...": [{"id": 1}]}}
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lake_writer import Callback, WrittenTable, open_session, rows_as_of, write_commit, write_options
from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def write(spark: SparkSession, order: Mapping[str, Any]) -> dict[str, Any]:
    """Write one commit."""
    table = WrittenTable(**{**order["table"], "drop_notices": tuple(order["table"].get("drop_notices", ()))})
    callback = Callback(**order["callback"]) if order.get("callback") else None
    commit = int(order["commit"])
    write_commit(spark, table, commit, write_options(table, commit, callback, order.get("hudi_options", {})))
    return {}


def read(spark: SparkSession, order: Mapping[str, Any]) -> dict[str, Any]:
    """Read a snapshot, whole or of the rows of a condition: how many, of how many ids, and the sum of all amounts."""
    found = spark.read.format("hudi").load(order["base_path"])
    if order.get("where"):
        found = found.where(order["where"])
    rows, ids, amounts = found.agg(F.count("*"), F.countDistinct("id"), F.sum("amount")).collect()[0]
    return {"rows": rows, "ids": ids, "cents": round((amounts or 0) * 100)}


def put(spark: SparkSession, order: Mapping[str, Any]) -> dict[str, Any]:
    """Write rows as one commit, by the settings of the order alone."""
    rows = spark.createDataFrame([tuple(row) for row in order["rows"]], order["schema"])
    rows.write.format("hudi").options(**order["hudi_options"]).mode("append").save(order["base_path"])
    return {}


def rows(spark: SparkSession, order: Mapping[str, Any]) -> dict[str, Any]:
    """Read all rows of a snapshot."""
    found = spark.read.format("hudi").options(**order["hudi_options"]).load(order["base_path"])
    return {"rows": [list(row) for row in found.select(*order["columns"]).collect()]}


def travel(spark: SparkSession, order: Mapping[str, Any]) -> dict[str, Any]:
    """Read the rows that there were after each of some instants."""
    return {"rows": {instant: rows_as_of(spark, order["base_path"], instant) for instant in order["instants"]}}


ORDERS: Mapping[str, Callable[[SparkSession, Mapping[str, Any]], dict[str, Any]]] = {
    "write": write,
    "read": read,
    "put": put,
    "rows": rows,
    "travel": travel,
}


def main(conf_path: str) -> None:
    """Carry out orders until the input ends."""
    spark = open_session(json.loads(Path(conf_path).read_text(encoding="utf-8")))
    print(json.dumps({"ok": True, "ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        began = time.monotonic()
        try:
            answer = {"ok": True, **ORDERS[order["do"]](spark, order)}
        except Exception as error:  # noqa: BLE001 - the process that sent the order decides about any error
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"[:4000]}
        print(json.dumps(answer | {"seconds": round(time.monotonic() - began, 3)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
