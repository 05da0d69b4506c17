"""Send the rows once more in which a sink differs from its table, and nothing else.

They are of the moment of the comparison, which is that of the sink's checkpoint: what completes later comes later, too.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Protocol

from airflow_lake_provider.errors import ConfigError, SinkUnavailableError
from airflow_lake_provider.replication.change import Batch, Change, Op, checksum_of
from airflow_lake_provider.replication.checkpoint import from_text
from airflow_lake_provider.replication.sink import CountedSink, ReadableSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_lake_provider.replication.change import CommitRef
    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from airflow_lake_provider.replication.sink import Sink
    from lake_jobs.replication.verification import Verification

log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 5_000


class SchemaOfCommits(Protocol):
    """A table that knows the schema of its rows."""

    def schema_of(self, commit: CommitRef) -> str:
        """Return the table's Avro schema as this commit wrote it."""


def send_again(
    found: Verification,
    rows: Callable[[], Iterator[tuple[str, str]]],
    checkpoint: Checkpoint,
    sink: Sink,
    table: SchemaOfCommits,
) -> None:
    """Send what `found` names in one transaction of the sink, which is not open yet. `rows` reads the table's.

    Raises ConfigError for a sink that has more than the newest version of a row, and SinkUnavailableError where another
    run has moved the stream meanwhile.
    """
    if not isinstance(sink, CountedSink) or not isinstance(sink, ReadableSink):
        raise ConfigError(f"sink {type(sink).__name__} cannot be repaired, only database can: take a new snapshot")
    commit = checkpoint.commit
    if commit is None:
        return
    try:
        text = sink.open()
        if text is None or from_text(text) != checkpoint:
            raise SinkUnavailableError("another run has moved the stream since the comparison: repair it once more")
        wrong = found.wrong_keys
        changes = (Change(Op.UPDATE, key, None, row) for key, row in rows())
        again = (change for change in changes if sink.as_read(change)[0] in wrong)
        gone = (Change(Op.DELETE, key, None, None) for key in found.foreign_keys)
        sent = chain(gone, again)
        schema = table.schema_of(commit)
        count = checksum = 0
        while some := list(islice(sent, _ROWS_AT_ONCE)):
            sink.write(Batch(commit, some, checkpoint.generation, schema=schema))
            count += len(some)
            checksum = checksum_of(some, checksum)
        moved = replace(
            checkpoint, sequence=checkpoint.sequence + 1, rows=count, checksum=f"{checksum:016x}", schema=""
        )
        sink.commit(moved)
        log.warning("stream %s: %d rows were sent again", checkpoint.stream, count)
    finally:
        sink.close()
