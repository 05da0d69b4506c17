"""A user of the catalog: plain Spark SQL with Hive support, which answers queries of standard input by JSON lines.

`python catalog_reader.py thrift://127.0.0.1:9083 '{"spark.driver.extraClassPath": ...}'`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]

from local_stack import lake_writer  # noqa: E402


def main() -> None:
    metastore, conf = sys.argv[1], json.loads(sys.argv[2])
    spark = lake_writer.open_session(
        {
            **conf,
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.hive.metastore.uris": metastore,
        }
    )
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        query = json.loads(line)
        try:
            rows = [list(row) for row in spark.sql(query).collect()]
            print(json.dumps({"rows": rows}, default=str), flush=True)
        except Exception as error:  # noqa: BLE001 - the test decides
            print(json.dumps({"error": str(error)[:2000]}), flush=True)


if __name__ == "__main__":
    main()
