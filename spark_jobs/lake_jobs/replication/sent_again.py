"""Rows that a sink gets once more at its position: those that differ, or those that a request chooses.

They are of the moment of that position: what completes later comes later, too. The generation stays, for the sink's
other rows do.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError, SinkUnavailableError
from airflow_lake_provider.replication.change import Batch, checksum_of
from airflow_lake_provider.replication.checkpoint import from_text
from airflow_lake_provider.replication.transactions import UNBOUNDED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_lake_provider.replication.change import Change
    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from airflow_lake_provider.replication.sink import Sink

_ROWS_AT_ONCE = 5_000


def send_changes(
    changes: Iterator[Change], checkpoint: Checkpoint, sink: Sink, schema: str, most_rows: int = UNBOUNDED
) -> int:
    """Send changes through a sink that is not open yet, about `most_rows` in a transaction; return how many there were.

    Each key may come once. Raises SinkUnavailableError where another run has moved the stream meanwhile.
    """
    commit = checkpoint.commit
    if commit is None:
        return 0
    total = 0
    try:
        text = sink.open()
        if text is None:
            raise ConfigError(f"sink {type(sink).__name__} keeps no position, so no rows can be sent to it again")
        if from_text(text) != checkpoint:
            raise SinkUnavailableError("another run has moved the stream meanwhile: request it once more")
        while transaction := list(islice(changes, min(_ROWS_AT_ONCE, most_rows))):
            count = checksum = 0
            some: Sequence[Change] = transaction
            while some:
                sink.write(Batch(commit, some, checkpoint.generation, schema=schema))
                count += len(some)
                checksum = checksum_of(some, checksum)
                some = list(islice(changes, min(_ROWS_AT_ONCE, most_rows - count)))
            checkpoint = replace(
                checkpoint, sequence=checkpoint.sequence + 1, rows=count, checksum=f"{checksum:016x}", schema=""
            )
            sink.commit(checkpoint)
            total += count
    finally:
        sink.close()
    return total
