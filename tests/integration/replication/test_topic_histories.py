"""Random histories of a table and of its topic, which is made again, grown, replaced, or loses its checkpoints.

The judge keeps the table's rows itself, and reads the topic with a plain consumer that obeys the generation.
"""

from __future__ import annotations

import random

import confluent_kafka.admin
import pytest

import airflow_lake_provider.replication.pump as pump
from local_stack.kafka import LocalKafka
from local_stack.processes import wait_until
from tests.support.read_topic import Topic

STEPS = 6
KEYS = 9
WAIT_S = 30
"""For what a broker does with a topic."""


class History(Topic):
    """One table, its topic, and what chance does to both."""

    def __init__(self, broker: LocalKafka, seed: int) -> None:
        super().__init__(broker)
        self.chance = random.Random(seed)
        self.clock = 100
        self.generation = 0
        self.partitions = {self.topic: 1}
        self.log = [f"seed {seed}"]

    def catch_up(self) -> None:
        """Run, with the last generation that the manager knows of."""
        checkpoint = self.run(generation=self.generation).checkpoint
        assert checkpoint is not None
        self.generation = checkpoint.generation
        self.check()

    def check(self) -> None:
        assert self.rows() == self.source.rows(), "; ".join(self.log)
        assert all(len(places) == 1 for places in self.partitions_of_keys().values()), "; ".join(self.log)

    # --- What happens

    def commit(self) -> None:
        self.clock += 10
        state = self.source.rows()
        changes: dict[int, int | None] = {}
        for number in self.chance.sample(range(KEYS), self.chance.randrange(1, 6)):
            is_gone = number in state and len(state) > 1 and self.chance.random() < 0.3
            changes[number] = None if is_gone else self.clock
        self.source.complete(self.clock, self.clock + 1, changes)

    def made_again(self) -> None:
        self.delete(self.topic)
        self.partitions[self.topic] = 1

    def lost_checkpoints(self) -> None:
        self.delete(f"{self.name}.checkpoints")

    def another_one(self) -> None:
        """A new one, or one of before, which has rows of an earlier time."""
        names = [f"{self.name}.v{self.clock}", *self.partitions]
        self.topic = self.chance.choice([name for name in names if name != self.topic])
        self.partitions.setdefault(self.topic, 1)

    def grown(self) -> None:
        if self.topic not in self.admin.list_topics(timeout=10).topics:
            return
        count = self.partitions[self.topic] + self.chance.randrange(1, 3)
        self.admin.create_partitions([confluent_kafka.admin.NewPartitions(self.topic, count)])[self.topic].result(20)
        wait_until(lambda: self.count_partitions() == count, WAIT_S, "the partitions")
        self.partitions[self.topic] = count

    def count_partitions(self) -> int:
        return len(self.admin.list_topics(self.topic, timeout=10).topics[self.topic].partitions)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(20)
        wait_until(lambda: topic not in self.admin.list_topics(timeout=10).topics, WAIT_S, "the topic to be gone")

    def go(self, steps: int) -> None:
        """Let chance decide; a commit follows whatever becomes of the topic."""
        self.catch_up()
        kinds = [self.commit, self.made_again, self.lost_checkpoints, self.another_one, self.grown]
        for _ in range(steps):
            kind = self.chance.choice(kinds)
            self.log.append(kind.__name__)
            kind()
            self.commit()
            self.catch_up()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 30))])
def test_topic_has_the_table_s_rows_whatever_becomes_of_it(broker: LocalKafka, seed: int) -> None:
    History(broker, seed).go(STEPS)


def test_history_finds_positions_that_hold_for_any_topic(broker: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "find_other_scope", lambda *_: "")
    with pytest.raises(AssertionError):
        History(broker, 0).go(STEPS)
