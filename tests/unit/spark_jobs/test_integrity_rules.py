"""What counts as damage, when writers, cleans and rollbacks work between the readings; what is drawn and remembered."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import Damage, DamageKind, KeyScope
from lake_jobs.services.integrity_rules import (
    PartitionReadings,
    TimelineNames,
    TwiceKey,
    draw_groups,
    draw_partitions,
    find_key_damage,
    find_listing_damage,
    read_integrity_rules,
    remember,
)
from lake_jobs.services.orphan_rules import Names

OLD = "aaaaaaaa-1111-2222-3333-000000000000-0_0-1-2_20261127080000000.parquet"
NEW = "aaaaaaaa-1111-2222-3333-000000000000-0_0-5-6_20261127090000000.parquet"
LOG = ".aaaaaaaa-1111-2222-3333-000000000000-0_20261127090000000.log.1_0-1-2"


def names(*, being_removed: str = "", removed: str = "", written: str = "") -> TimelineNames:
    return TimelineNames(*(Names([text.encode()]) for text in (being_removed, removed, written)))


def judge(read: PartitionReadings, timeline: TimelineNames) -> dict[DamageKind, str]:
    return {damage.kind: damage.what for damage in find_listing_damage(read, timeline)}


LISTED = PartitionReadings("p", {OLD: 10, NEW: 10}, {NEW: 10}, {OLD: 10, NEW: 10}, {NEW: 10})
STORED = PartitionReadings("p", {OLD: 10}, {OLD: 10, NEW: 10}, {OLD: 10}, {OLD: 10, NEW: 10})


def test_listed_file_that_the_store_lacks_is_gone() -> None:
    found = judge(LISTED, names())
    assert list(found) == [DamageKind.GONE_FILES]
    assert OLD in found[DamageKind.GONE_FILES]
    assert "partition 'p'" in found[DamageKind.GONE_FILES]
    # Also where a clean that has completed named it: then its list should lack it.
    assert judge(LISTED, names(removed=OLD))


def test_clean_between_the_readings_is_no_damage() -> None:
    assert judge(LISTED, names(being_removed=f'{{"path": "p/{OLD}"}}')) == {}
    cleaned = PartitionReadings("p", LISTED.listed, LISTED.stored, {NEW: 10}, LISTED.stored_again)
    assert judge(cleaned, names(removed=OLD)) == {}


def test_base_file_that_was_cut_short_is_found_and_a_log_file_is_not() -> None:
    read = PartitionReadings("p", {OLD: 10, LOG: 10}, {OLD: 9, LOG: 9}, {OLD: 10, LOG: 10}, {OLD: 9, LOG: 9})
    assert judge(read, names()) == {DamageKind.GONE_FILES: f"1 file of partition 'p' cut short: {OLD} (9 of 10 bytes)"}
    longer = PartitionReadings("p", {OLD: 10}, {OLD: 11}, {OLD: 10}, {OLD: 11})
    assert judge(longer, names()) == {}
    empty = PartitionReadings("p", {OLD: 1}, {OLD: 0}, {OLD: 1}, {OLD: 0})
    assert judge(empty, names()) == {}, "so Hudi lists a file of zero bytes"


def test_file_of_a_completed_write_that_is_not_listed_is_found() -> None:
    found = judge(STORED, names(written=f'"path":"p/{NEW}"'))
    assert list(found) == [DamageKind.UNLISTED_FILES]
    assert NEW in found[DamageKind.UNLISTED_FILES]


@pytest.mark.parametrize(
    ("read", "timeline"),
    [
        pytest.param(STORED, names(), id="of-a-write-in-flight-or-failed"),
        pytest.param(
            PartitionReadings("p", STORED.listed, STORED.stored, STORED.stored, STORED.stored_again),
            names(written=NEW),
            id="listed-by-now",
        ),
        pytest.param(
            PartitionReadings("p", STORED.listed, STORED.stored, STORED.listed, {OLD: 10}),
            names(written=NEW),
            id="cleaned-by-now",
        ),
        pytest.param(STORED, names(written=NEW, being_removed=NEW), id="being-cleaned"),
        pytest.param(STORED, names(written=NEW, removed=NEW), id="left-by-a-clean"),
    ],
)
def test_stored_file_with_another_explanation_is_no_damage(read: PartitionReadings, timeline: TimelineNames) -> None:
    assert judge(read, timeline) == {}


@dataclass
class World:
    """A partition under writers and cleans, each of which takes its steps in Hudi's order, one at a time."""

    rng: random.Random
    listed: dict[str, int] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    pending: set[str] = field(default_factory=set)
    cleaned: set[str] = field(default_factory=set)
    doomed: set[str] = field(default_factory=set)
    at_work: list[list[tuple[str, str]]] = field(default_factory=list)
    begun: int = 0

    def take(self, name: str, what: str) -> None:
        if what == "store":
            self.stored[name] = 10
        elif what == "list":
            self.listed[name] = 10
        elif what == "complete":
            self.written.append(name)
        elif what == "plan":
            self.pending.add(name)
        elif what == "remove":
            del self.stored[name]
        elif what == "unlist":
            del self.listed[name]
        else:
            self.pending.remove(name)
            self.cleaned.add(name)

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            if self.rng.random() < 0.4:
                self.begun += 1
                name = OLD.replace("20261127080000000", str(20261127080000000 + self.begun))
                self.at_work.append([(name, what) for what in ("store", "list", "complete")])
            whole = [name for name in self.written if name not in self.doomed]
            if whole and self.rng.random() < 0.4:
                name = self.rng.choice(whole)
                self.doomed.add(name)
                self.at_work.append([(name, what) for what in ("plan", "remove", "unlist", "done")])
            going = [task for task in self.at_work if task]
            if going:
                self.take(*self.rng.choice(going).pop(0))

    def list_now(self) -> dict[str, int]:
        """Return what a reader of the metadata table sees: nothing of writes that are not complete."""
        return {name: size for name, size in self.listed.items() if name in self.written}

    def names_now(self) -> TimelineNames:
        return names(
            being_removed=" ".join(self.pending), removed=" ".join(self.cleaned), written=" ".join(self.written)
        )


def test_no_history_of_writers_and_cleans_is_taken_for_damage() -> None:
    suspects = 0
    for seed in range(3000):
        world = World(random.Random(seed))
        world.go_on(20)
        listed = world.list_now()
        world.go_on(world.rng.randrange(6))
        stored = dict(world.stored)
        world.go_on(world.rng.randrange(6))
        timeline = world.names_now()
        world.go_on(world.rng.randrange(6))
        listed_again = world.list_now()
        world.go_on(world.rng.randrange(6))
        read = PartitionReadings("p", listed, stored, listed_again, dict(world.stored))
        suspects += bool(read.gone or read.unlisted)
        assert find_listing_damage(read, timeline) == (), seed
    assert suspects > 1000


def test_partitions_are_drawn_by_chance_and_damaged_ones_come_first() -> None:
    known = [f"day={day:03d}" for day in range(100)]
    first = draw_partitions(known, ["gone"], "run-1", 10)
    assert first[0] == "gone"
    assert len(set(first)) == 10
    assert first != draw_partitions(known, ["gone"], "run-2", 10)
    seen = {partition for run in range(100) for partition in draw_partitions(known, [], f"run-{run}", 10)}
    assert seen == set(known)
    assert set(draw_partitions(known, [], "run", 1000)) == set(known)
    # Many damaged ones leave half of the places to others, and each of them has its turn.
    runs = [draw_partitions(known, [f"gone={at}" for at in range(50)], f"run-{run}", 10) for run in range(100)]
    assert {sum(each.startswith("gone=") for each in run) for run in runs} == {5}
    assert len({each for run in runs for each in run if each.startswith("gone=")}) == 50
    assert draw_partitions([], ["gone=1", "gone=2"], "run", 1000) in {("gone=1", "gone=2"), ("gone=2", "gone=1")}


def test_file_groups_are_drawn_within_the_bytes() -> None:
    sizes = {"a": {f"f{at}": 30 for at in range(5)}, "b": {"small": 5, "huge": 10_000}}
    drawn = draw_groups(sizes, "run", 100)
    assert (len(drawn["a"]), drawn["b"]) == (3, ("small",))
    everything = draw_groups(sizes, "run", 1 << 30)
    assert {partition: set(groups) for partition, groups in everything.items()} == {
        partition: set(groups) for partition, groups in sizes.items()
    }
    assert everything["a"] != draw_groups(sizes, "another run", 1 << 30)["a"]


def test_damage_of_keys_names_five_of_them_with_files() -> None:
    twice = [TwiceKey(f"id:{at}", 2, ("p",), ("p/f1.parquet", "p/f2.parquet")) for at in range(7)]
    (damage,) = find_key_damage(twice, 1234)
    assert damage.partitions == ("p",)
    assert damage.what.startswith("1,234 record keys have several rows: id:0 has 2 rows in p/f1.parquet, p/f2.parquet;")
    assert ("id:4" in damage.what, "id:5" in damage.what) == (True, False)
    assert find_key_damage([], 0) == ()
    long = TwiceKey("k" * 100_000 + "\x1b", 2, ("p",), ("p/f1.parquet",))
    assert f"{'k' * 100}... has 2 rows" in find_key_damage([long], 1)[0].what
    assert "a\\x1bb has" in find_key_damage([TwiceKey("a\x1bb", 2, ("p",), ("p/f1.parquet",))], 1)[0].what
    assert find_key_damage(twice[:1], 1)[0].what.startswith("1 record key has several rows")


def damage(*partitions: str, what: str = "x") -> Damage:
    return Damage(DamageKind.GONE_FILES, partitions, what)


def test_damage_is_known_until_its_partitions_were_compared_whole() -> None:
    kind = DamageKind.GONE_FILES
    before = (damage("a"), damage("b", "c"))
    assert remember(before, (), {}) == before
    assert remember(before, (), {kind: ["a", "b"]}) == (damage("b", "c"),)
    assert remember(before, (), {kind: ["a", "b", "c"]}) == ()
    new = damage("a", what="y")
    assert remember(before, [new], {kind: ["a"]}) == (new, damage("b", "c"))
    assert len(remember([damage(str(at)) for at in range(500)], (), {})) == 100


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"lake.integrity.keys": "all"}, "it must be one of partition, table, off"),
        ({"lake.integrity.max_bytes": "0"}, "max_bytes is '0', it must be a whole number from 1"),
        ({"lake.integrity.max_partitions": "many"}, "max_partitions is 'many'"),
    ],
)
def test_settings_that_are_none_are_refused_with_the_table(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ServiceRefusedError, match="table orders at /lake/orders") as error:
        read_integrity_rules(options, "table orders at /lake/orders")
    assert problem in str(error.value)
    assert read_integrity_rules({}, "t").keys is KeyScope.PARTITION
