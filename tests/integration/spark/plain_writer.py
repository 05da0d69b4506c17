"""A writer of a user's own: one Spark session that sets nothing but the table's own fields, by DataFrame and by SQL.

`python plain_writer.py FOLDER` commits seven times to FOLDER/frame and twice to FOLDER/by_sql, then once to each with
the callback switched off by the job itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.spark_session import open_test_session


def main(folder: Path) -> None:
    """Write both tables."""
    spark = open_test_session(folder)
    table = {
        "hoodie.table.name": "frame",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.datasource.write.partitionpath.field": "",
        "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
    }

    def write(ts: int, **more: str) -> None:
        frame = spark.createDataFrame([(key, ts) for key in range(20)], ["id", "ts"])
        frame.write.format("hudi").options(**table).options(**more).mode("append").save(str(folder / "frame"))

    for ts in range(7):
        write(ts)
    write(7, **{"hoodie.write.commit.callback.on": "false"})
    spark.sql(
        "create table by_sql (id bigint, name string, ts bigint) using hudi "
        f"tblproperties (type = 'mor', primaryKey = 'id', preCombineField = 'ts') location '{folder / 'by_sql'}'"
    )
    spark.sql("insert into by_sql values (1, 'first', 1)")
    spark.sql("update by_sql set name = 'second' where id = 1")
    spark.sql("set hoodie.write.commit.callback.on = false")
    spark.sql("update by_sql set name = 'third' where id = 1")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
