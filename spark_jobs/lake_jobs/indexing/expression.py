"""Entries of an expression index for a write that has completed: what its writer would have added.

Each file that a write made has an entry: the bounds of the expression's values in it, or a bloom filter of them. For
bounds each of the write's partitions has one as well, of all its files, which replaces the one before. Hudi takes the
values of the write's files from these, and those of the partition's other files from the index itself
(`getExpressionIndexPartitionStatsForExistingFiles`). So the writes have to be repeated one after another, each with
what all before it have written.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lake_jobs.hudi.table import class_of, list_items
from lake_jobs.indexing.hudi_internals import EXPRESSION, EXPRESSION_PARAMETERS, WRITER_CLASS, find_method
from lake_jobs.indexing.hudi_writer import data_meta_client_of, invoke, make_metadata_writer
from lake_jobs.indexing.listing import own_folder, write_aside

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lake_jobs.indexing.rules import IndexPlan
    from lake_jobs.services.context import ServiceContext


@contextmanager
def writer_that_knows(context: ServiceContext, builder: Any, plan: IndexPlan, definition: Any) -> Iterator[Any]:
    """Give a metadata writer of Hudi that has the definition of an index which the table does not list yet.

    Raises IndexFailure, or Py4JJavaError.
    """
    writer = make_metadata_writer(context, builder, plan)
    try:
        with own_folder(context, f"late-{plan.partition}") as folder:
            meta_client = data_meta_client_of(context, writer)
            write_aside(context, meta_client, folder)
            meta_client.buildIndexDefinition(definition)
            yield writer
    finally:
        writer.close()


def convert_to_expression(context: ServiceContext, plan: IndexPlan, writer: Any, instant: str, metadata: Any) -> Any:
    """Return Hudi's entries of a completed write for an expression index; None for one without files.

    `writer` is of `writer_that_knows`. Raises Py4JJavaError.
    """
    if not any(list_items(stats) for stats in metadata.getPartitionToWriteStats().values()):
        return None
    # It keeps the slices of the index that it has once listed, and the instants that count.
    writer.getTableMetadata().reset()
    method = find_method(class_of(context.spark, WRITER_CLASS, writer), EXPRESSION, EXPRESSION_PARAMETERS)
    return invoke(context, method, writer, metadata, plan.partition, instant)
