"""Print what a Hudi table held at each of some instants: `python table_versions.py BASE_PATH JAR INSTANT...`.

The other side of the demo's comparison: time travel by stock Spark and Hudi, nothing of the provider. One line of JSON
for each instant, `{"instant": "...", "rows": [{...}, ...]}`, Hudi's meta fields left out.
"""

from __future__ import annotations

import json
import sys

from lake_writer import open_session, rows_as_of


def main(base_path: str, jar: str, instants: list[str]) -> None:
    spark = open_session({"spark.jars": jar, "spark.sql.session.timeZone": "UTC"})
    for instant in instants:
        print(json.dumps({"instant": instant, "rows": rows_as_of(spark, base_path, instant)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
