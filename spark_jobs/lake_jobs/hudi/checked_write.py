"""One commit by Hudi's own Spark writer, with a check of ours just before it completes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import ensure_callback_server_started

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession


def write_checked(
    spark: SparkSession, rows: DataFrame, settings: Mapping[str, str], check: Callable[[Any], None]
) -> str:
    """Write rows as one commit and return its instant; empty when Hudi did not commit.

    Hudi calls `check` with the commit's metadata, under the table's lock, just before it completes the commit. Raises
    what `check` raises, and then nothing is committed; raises Py4JJavaError when Hudi fails.
    """
    jvm: Any = spark._jvm
    start: Callable[[Any], None] = ensure_callback_server_started
    start(spark.sparkContext._gateway)
    some = jvm.scala.Option.apply
    none = jvm.scala.Option.empty()
    # Spark's streaming sink of Hudi passes its check of the last batch in this way; a plain write has none.
    parameters = getattr(jvm.org.apache.hudi, "HoodieSparkSqlWriter$StreamingWriteParams")
    java_settings = jvm.java.util.HashMap()
    for key, value in settings.items():
        java_settings.put(key, value)
    before = _BeforeCommit(check)
    try:
        written = jvm.org.apache.hudi.HoodieSparkSqlWriter.write(
            spark._jsparkSession.sqlContext(),
            jvm.org.apache.spark.sql.SaveMode.Append,
            jvm.PythonUtils.toScalaMap(java_settings),
            rows._jdf,
            some(parameters(none, none, none, some(before))),
            none,
            none,
        )
    except Py4JJavaError as error:
        raise before.error or error from error
    return str(written._2().orElse("")) if bool(written._1()) else ""


class _BeforeCommit:
    """What Hudi calls just before it completes a commit."""

    def __init__(self, check: Callable[[Any], None]) -> None:
        self._check = check
        self.error: Exception | None = None

    def accept(self, client: Any, metadata: Any) -> None:
        """Check; an error keeps Hudi from completing the commit."""
        _ = client
        try:
            self._check(metadata)
        except Exception as error:
            # Java's own error has it as text only.
            self.error = error
            raise

    class Java:
        """What py4j asks for."""

        implements: ClassVar[list[str]] = ["java.util.function.BiConsumer"]
