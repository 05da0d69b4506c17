"""What an integrity check compares, what counts as damage, and what is remembered of it. Pure.

A writer, a clean or a rollback may be at work meanwhile. So a difference counts only where the readings, in their
order, leave no other explanation (`find_listing_damage`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import (
    INTEGRITY_KEYS,
    INTEGRITY_MAX_BYTES,
    INTEGRITY_MAX_PARTITIONS,
    METADATA_TABLE,
    Damage,
    DamageKind,
    KeyScope,
)
from airflow_lake_provider.shared.plain_text import MAX_SHOWN_OF_KEY, first_line
from lake_jobs.replication.file_slices import parse_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from lake_jobs.services.orphan_rules import Names

MAX_PARTITIONS = 20_000
"""Partitions that a run compares at most, whatever the policy says."""
MAX_NAMED = 5
"""Files, or keys, that a finding names."""
MAX_DAMAGES = 100
"""Partitions with damage that are remembered, of each kind."""
LISTED_AS_EMPTY_BYTES = 1
"""The size that Hudi's metadata table has of a file of zero bytes."""


@dataclass(frozen=True, slots=True)
class IntegrityRules:
    """The policy of one run."""

    keys: KeyScope
    max_partitions: int
    max_bytes: int


def read_integrity_rules(settings: Mapping[str, str], table: str) -> IntegrityRules:
    """Return the rules that a request's options say. Raises ServiceRefusedError."""
    scope = settings.get(INTEGRITY_KEYS, KeyScope.PARTITION.value)
    if scope not in list(KeyScope):
        raise ServiceRefusedError(f"{table}: {INTEGRITY_KEYS} is {scope!r}, it must be one of {', '.join(KeyScope)}")
    numbers = {}
    for key, default in ((INTEGRITY_MAX_PARTITIONS, "20"), (INTEGRITY_MAX_BYTES, str(1 << 30))):
        text = settings.get(key, default).strip()
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise ServiceRefusedError(f"{table}: {key} is {text!r}, it must be a whole number from 1")
        numbers[key] = int(text)
    return IntegrityRules(KeyScope(scope), numbers[INTEGRITY_MAX_PARTITIONS], numbers[INTEGRITY_MAX_BYTES])


# --- What is drawn


def draw_partitions(known: Iterable[str], damaged: Iterable[str], seed: str, most: int) -> tuple[str, ...]:
    """Return the partitions of a run, by chance: those with known damage first, which leave half of it to others."""
    most = min(most, MAX_PARTITIONS)
    first = sorted(set(damaged), key=lambda partition: _draw(seed, partition))
    others = sorted(set(known) - set(first), key=lambda partition: _draw(seed, partition))
    places = max((most + 1) // 2, most - len(others))
    return tuple([*first[:places], *others][:most])


def draw_groups(sizes: Mapping[str, Mapping[str, int]], seed: str, max_bytes: int) -> dict[str, tuple[str, ...]]:
    """Return the file groups whose keys a run reads, by partition; one that does not fit any more is left out.

    `sizes` has the bytes of each file group by partition, in the order in which partitions take their share.
    """
    left = max_bytes
    drawn: dict[str, tuple[str, ...]] = {}
    for partition, groups in sizes.items():
        taken = []
        for group in sorted(groups, key=lambda group: _draw(seed, f"{partition}/{group}")):
            if groups[group] <= left:
                left -= groups[group]
                taken.append(group)
        drawn[partition] = tuple(taken)
    return drawn


def _draw(seed: str, name: str) -> bytes:
    return hashlib.sha256(f"{seed} {name}".encode()).digest()


# --- The metadata table's list of files against the store


@dataclass(frozen=True, slots=True)
class PartitionReadings:
    """Names and sizes of one partition's files, read in this order: listed, stored, the timeline, and both again."""

    partition: str
    listed: Mapping[str, int]
    """By the metadata table."""
    stored: Mapping[str, int]
    listed_again: Mapping[str, int] = field(default_factory=dict)
    stored_again: Mapping[str, int] = field(default_factory=dict)

    @property
    def gone(self) -> frozenset[str]:
        """Files that are listed, and not stored as such."""
        return frozenset(
            name
            for name, size in self.listed.items()
            if name not in self.stored or _is_cut(name, size, self.stored[name])
        )

    @property
    def unlisted(self) -> frozenset[str]:
        """Data files that are stored, and not listed."""
        return frozenset(name for name in self.stored if name not in self.listed and parse_name(name) is not None)


@dataclass(frozen=True, slots=True)
class TimelineNames:
    """Which files the timeline named after the first two readings."""

    being_removed: Names
    """By pending cleans and rollbacks: a plan is on the timeline before the first file goes."""
    removed: Names
    """By completed ones."""
    written: Names
    """By completed writes."""


def find_listing_damage(read: PartitionReadings, names: TimelineNames) -> tuple[Damage, ...]:
    """Return in what a partition's files differ from the metadata table's list of them.

    A file is *gone* that was listed, was not stored after that, and is still listed. What removed it with a right to is
    on the timeline: pending, or completed, and then the file is no longer listed in a list that is read afterwards.

    A file is *unlisted* that a completed write names, that a list which was read after that write's completion does not
    have, and that is stored afterwards: a clean takes a file from the store before it takes it from the list.
    """
    gone = {name for name in read.gone & read.listed_again.keys() if name not in names.being_removed}
    cut = {name for name in gone if name in read.stored}
    unlisted = {
        name
        for name in (read.unlisted & read.stored_again.keys()) - read.listed_again.keys()
        if name in names.written and name not in names.removed and name not in names.being_removed
    }
    where = describe_partition(read.partition)
    found = []
    if gone - cut:
        what = _count(gone - cut, "file")
        found.append(f"{METADATA_TABLE} lists {what} of {where} that the store lacks: {_named(gone - cut)}")
    if cut:
        sizes = [f"{name} ({read.stored[name]:,} of {read.listed[name]:,} bytes)" for name in sorted(cut)]
        found.append(f"{_count(cut, 'file')} of {where} cut short: {_named(sizes)}")
    damages = [Damage(DamageKind.GONE_FILES, (read.partition,), "; ".join(found))] if found else []
    if unlisted:
        what = _count(unlisted, "file")
        text = f"{METADATA_TABLE} lacks {what} of {where} that completed writes name: {_named(unlisted)}"
        damages.append(Damage(DamageKind.UNLISTED_FILES, (read.partition,), text))
    return tuple(damages)


def _is_cut(name: str, listed_bytes: int, stored_bytes: int) -> bool:
    # A log file may grow before version 8, so its sizes prove nothing.
    file = parse_name(name)
    is_base = file is not None and not file.is_log
    return is_base and stored_bytes < listed_bytes != LISTED_AS_EMPTY_BYTES


def describe_partition(partition: str) -> str:
    """Return a partition for people."""
    return f"partition {partition!r}" if partition else "the table"


# --- Record keys


@dataclass(frozen=True, slots=True)
class TwiceKey:
    """A record key with several rows."""

    key: str
    rows: int
    partitions: tuple[str, ...]
    files: tuple[str, ...]
    """A file of each file group that has it, below the base path."""


def find_key_damage(found: Sequence[TwiceKey], number: int) -> tuple[Damage, ...]:
    """Return the damage of keys with several rows: there are `number` of them, of which some are found by name."""
    if not found:
        return ()
    partitions = tuple(sorted({partition for each in found for partition in each.partitions}))
    keys = "; ".join(
        f"{first_line(each.key, MAX_SHOWN_OF_KEY)} has {each.rows} rows in {_named(each.files)}"
        for each in found[:MAX_NAMED]
    )
    what = "1 record key has" if number == 1 else f"{number:,} record keys have"
    return (Damage(DamageKind.DUPLICATE_KEYS, partitions, f"{what} several rows: {keys}"),)


# --- What is remembered


def remember(
    before: Iterable[Damage], found: Iterable[Damage], compared: Mapping[DamageKind, Collection[str]]
) -> tuple[Damage, ...]:
    """Return the damage that is known after a run.

    What was known stays unless the run has compared its partitions: `compared` has those that it compared whole, by
    kind of damage.
    """
    new = list(found)
    is_new = {(damage.kind, damage.partitions) for damage in new}
    left = [
        damage
        for damage in before
        if (damage.kind, damage.partitions) not in is_new
        and not set(damage.partitions) <= set(compared.get(damage.kind, ()))
    ]
    return tuple([*new, *left][:MAX_DAMAGES])


def _count(names: Collection[str], what: str) -> str:
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'}"


def _named(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return f"{', '.join(found[:MAX_NAMED])}{more}"
