"""Send the rows once more in which a sink differs from its table, and nothing else."""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.replication.change import Change, Op
from airflow_lake_provider.replication.sink import ReadableSink, RepairableSink
from lake_jobs.replication.sent_again import send_changes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_lake_provider.replication.change import CommitRef
    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from airflow_lake_provider.replication.sink import Sink
    from lake_jobs.replication.verification import Verification

log = logging.getLogger(__name__)


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
    if not isinstance(sink, RepairableSink) or not isinstance(sink, ReadableSink):
        raise ConfigError(f"sink {type(sink).__name__} cannot be repaired, only database can: take a new snapshot")
    if checkpoint.commit is None:
        return
    wrong = found.wrong_keys
    changes = (Change(Op.UPDATE, key, None, row) for key, row in rows())
    again = (change for change in changes if sink.as_read(change)[0] in wrong)
    gone = (Change(Op.DELETE, key, None, None) for key in found.foreign_keys)
    count = send_changes(chain(gone, again), checkpoint, sink, table.schema_of(checkpoint.commit))
    log.warning("stream %s: %d rows were sent again", checkpoint.stream, count)
