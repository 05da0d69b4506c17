"""Which positions hold for a target, and what is said of those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.checkpoint import Checkpoint, from_text, to_text
from airflow_lake_provider.replication.job import ReplicationRequest
from airflow_lake_provider.replication.scope import find_other_scope, scope_of
from airflow_lake_provider.replication.transactions import Order

BEFORE = scope_of({"table's oid": "7"}, {"key": "id", "mode": "latest"})


@pytest.mark.parametrize(
    ("target", "meaning", "said"),
    [
        pytest.param({"table's oid": "7"}, {"key": "id", "mode": "latest"}, "", id="same"),
        pytest.param({"table's oid": "8"}, {"key": "id"}, "table's oid was 7 and is 8", id="made again"),
        pytest.param({}, {"key": "id, part"}, "key was id and is id, part", id="another key"),
        pytest.param({"topic's id": "x"}, {}, "", id="nothing known of it"),
    ],
)
def test_scope(target: dict[str, str], meaning: dict[str, str], said: str) -> None:
    found = find_other_scope(BEFORE, scope_of(target, meaning))
    assert found.endswith(said)
    assert bool(found) is bool(said)
    assert find_other_scope((), scope_of(target, meaning)) == ""


def test_checkpoint_carries_its_scope_and_earlier_ones_have_none() -> None:
    checkpoint = Checkpoint("t.s", 1, 1, None)
    assert "scope" not in to_text(checkpoint)
    assert from_text(to_text(checkpoint)) == checkpoint
    scoped = replace(checkpoint, scope=BEFORE)
    assert from_text(to_text(scoped)) == scoped


def test_masks_are_a_streams_meaning_and_their_salt_is_not() -> None:
    options = {"column.mask.hash.SHA-256": "email", "column.mask.hash.salt": "s3cret", "topic": "t"}
    request = ReplicationRequest("/t", "t", "kafka", Order("t.kafka"), "", ChangeMode.LATEST, options=options)
    meaning = request.meaning(("id", "part"))
    assert meaning == {
        "key": "id, part",
        "mode": "latest",
        "format": "json",
        "columns": "column.mask.hash.SHA-256=email",
    }
