"""One bucket of a large commit, sent by a task of an executor; what the driver gets of it is one line of JSON.

An executor loads this module and the sink's, and none of what reads tables.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_lake_provider import errors
from airflow_lake_provider.errors import LakeError, ReplicationFailedError, SinkFencedError, StreamOvertakenError
from airflow_lake_provider.replication.checkpoint import from_text
from airflow_lake_provider.replication.sink import create_sink
from airflow_lake_provider.replication.spread import BucketOrder, bucket_stream, send_bucket
from lake_jobs.replication.arrow_changes import ArrowChanges
from lake_jobs.replication.row_transfer import cut_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_lake_provider.replication.change import Change
    from airflow_lake_provider.replication.sink import SinkSettings
    from airflow_lake_provider.replication.spread import Expected

OUTCOME = "outcome"
"""The only column of what a task returns."""


@dataclass(frozen=True, slots=True)
class BucketOutcome:
    """What became of one bucket. An error is a part of it, so that its class reaches the driver."""

    bucket: int
    rows: int = 0
    checksum: int = 0
    bytes: int = 0
    error: str = ""
    """The class of the error; empty without one."""
    message: str = ""
    failure_kind: str = ""

    def to_error(self) -> LakeError:
        """Return the error of a bucket that was not sent."""
        found = getattr(errors, self.error, None)
        known = found if isinstance(found, type) and issubclass(found, LakeError) else ReplicationFailedError
        error = known(self.message)
        error.failure_kind = self.failure_kind
        return error


@dataclass(frozen=True, slots=True)
class BucketWork:
    """What every task of one commit gets. `settings` may hold secrets."""

    kind: str
    """The sink's name in the registry."""
    settings: SinkSettings
    begun: str
    """The text of the stream's checkpoint."""
    expected: Mapping[int, Expected]
    """By bucket; no other one has changes."""
    schema: str
    more_options: Mapping[str, str]


def send(work: BucketWork, bucket: int, batches: Iterator[Any]) -> Iterator[Any]:
    """Send the record batches of one bucket, and return what became of it, as a record batch.

    Raises SinkFencedError where another task has opened the bucket: one of the same run may be at work, and Spark takes
    the result of the one that succeeds. What is no LakeError is raised as well, and Spark tries the task again.
    """
    outcome = _send(work, bucket, batches) if bucket in work.expected else BucketOutcome(bucket)
    for _ in batches:
        pass  # Spark expects that all of the input is read
    yield _as_batch(json.dumps(asdict(outcome)))


def find_missing(kind: str, settings: SinkSettings) -> str:
    """Return what this executor lacks to open a sink; empty when it has everything."""
    try:
        create_sink(kind, replace(settings, stream=bucket_stream(settings.stream, 0)))
    except (ImportError, LakeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def say_missing(kind: str, settings: SinkSettings, batches: Iterator[Any]) -> Iterator[Any]:
    """Return `find_missing` as a record batch."""
    for _ in batches:
        pass
    yield _as_batch(find_missing(kind, settings))


def _send(work: BucketWork, bucket: int, batches: Iterator[Any]) -> BucketOutcome:
    expected = work.expected[bucket]
    order = BucketOrder(work.settings, from_text(work.begun), bucket, expected, work.schema, work.more_options)
    try:
        sent = send_bucket(order, partial(create_sink, work.kind), _blocks(batches))
    except StreamOvertakenError as error:
        return _failed(bucket, error)
    except SinkFencedError:
        raise
    except LakeError as error:
        return _failed(bucket, error)
    return BucketOutcome(bucket, sent.rows, sent.checksum, sent.bytes)


def _failed(bucket: int, error: LakeError) -> BucketOutcome:
    return BucketOutcome(bucket, error=type(error).__name__, message=str(error), failure_kind=error.failure_kind)


def _blocks(batches: Iterator[Any]) -> Iterator[Sequence[Change]]:
    for batch in batches:
        yield from map(ArrowChanges, cut_batches([batch]))


def _as_batch(text: str) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array([text])], names=[OUTCOME])
