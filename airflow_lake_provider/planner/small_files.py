"""How many small base files each partition has, and which partitions a clustering takes. Pure.

The rule that makes a clustering due is what its job gets: a plan of Hudi's takes at most thirty groups, from the first
partitions that have something to merge. Without names it would take the same ones after every commit, and the
partition with the most small files never.

The active timeline shows the files of its writes only. So the registry keeps which small files are known (hashes of
their ids), for those that the active timeline does not show any more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.shared.partition_filter import (
    DEFAULT_MAX_GROUPS,
    LAYOUT,
    MAX_GROUPS,
    SINGLE_GROUP,
    SMALL_FILE_LIMIT,
    SORT_COLUMNS,
    can_be_named,
    find_partition_filter,
    int_of,
    only_in,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.planner.facts import TableFacts

MIN_FILES = 2
"""Small files of a partition that can be merged with each other."""
_HASH_CHARACTERS = 8
_MAX_TEXT = 24_000
"""Characters that the registry keeps for one table; the partitions with the fewest small files are left out."""


@dataclass(frozen=True, slots=True)
class KnownSmallFiles:
    """The small files that earlier evaluations saw."""

    limit_bytes: int = 0
    """Files below this size are small; with another limit nothing is known."""
    until: str = ""
    """Completed time of the newest write that was counted; empty is never."""
    is_complete: bool = False
    """Whether these are all that the table has: a run without named partitions found nothing to merge."""
    hashes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """By partition: the hashes of its small files' ids, one after the other."""

    def of(self, partition: str) -> frozenset[str]:
        """Return the hashes of a partition's small files."""
        text = self.hashes.get(partition, "")
        return frozenset(text[n : n + _HASH_CHARACTERS] for n in range(0, len(text), _HASH_CHARACTERS))

    def to_dict(self) -> dict[str, Any]:
        """Return the shape that the registry keeps."""
        return {"limit": self.limit_bytes, "until": self.until, "all": self.is_complete, "of": dict(self.hashes)}


NO_SMALL_FILES = KnownSmallFiles()


def parse_small_files(record: Any) -> KnownSmallFiles:
    """Return what `KnownSmallFiles.to_dict` gave; nothing is known of any other value."""
    try:
        hashes = {str(partition): str(text) for partition, text in record["of"].items()}
        return KnownSmallFiles(
            int(record["limit"]), str(record["until"]), bool(record["all"]), MappingProxyType(hashes)
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        return NO_SMALL_FILES


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """The small files of a table by partition: how many, and about how many bytes."""

    counts: Mapping[str, int]
    size_bytes: Mapping[str, int]
    is_complete: bool

    def worst(self) -> tuple[str, int]:
        """Return the partition with the most small files, and how many; empty and 0 when there are none."""
        return max(self.counts.items(), key=lambda item: (item[1], item[0]), default=("", 0))

    def choose(self, min_files: int, max_partitions: int) -> tuple[str, ...]:
        """Return the partitions that have at least so many, the worst first, and not more than a plan can take."""
        enough = ((partition, n) for partition, n in self.counts.items() if n >= max(MIN_FILES, min_files))
        return tuple(p for p, _ in islice(sorted(enough, key=lambda item: (-item[1], item[0])), max_partitions))

    def total(self, partitions: Collection[str] | None = None) -> tuple[int, int]:
        """Return number and bytes of the small files of some partitions, or of all."""
        named = self.counts.keys() if partitions is None else partitions
        return sum(self.counts.get(p, 0) for p in named), sum(self.size_bytes.get(p, 0) for p in named)


def count_small_files(facts: TableFacts, policy: TablePolicy, known: KnownSmallFiles) -> SmallFiles:
    """Return the small files that the active timeline shows, and those that are known besides."""
    limit = policy.clustering.small_file_bytes
    most = _most_hashes(policy)
    shown = {p: found for p, f in facts.history.partitions.items() if (found := f.small_files(limit, most)).files}
    counts = Counter({partition: found.files for partition, found in shown.items()})
    sizes = Counter({partition: found.size_bytes for partition, found in shown.items()})
    shown_files = sum(counts.values())
    mean_bytes = sum(sizes.values()) // shown_files if shown_files else limit // 2
    for partition, hashes in _find_older(facts, policy, known).items():
        counts[partition] += len(hashes)
        sizes[partition] += len(hashes) * mean_bytes
    chosen = find_partition_filter(policy.hudi_options)
    if chosen.selected is not None and not chosen.obstacle:
        counts = Counter({partition: n for partition, n in counts.items() if partition in chosen.selected})
    return SmallFiles(
        MappingProxyType(counts), MappingProxyType(sizes), known.is_complete and _is_usable(facts, policy, known)
    )


def remember_small_files(
    facts: TableFacts, policy: TablePolicy, known: KnownSmallFiles, *, found_nothing_since: str
) -> KnownSmallFiles:
    """Return what is known after this evaluation.

    `found_nothing_since` is the completed time of the newest write at the decision of a run without named partitions
    that found nothing to merge; empty without one.
    """
    if not policy.clustering.enabled or not facts.writes:
        return NO_SMALL_FILES
    most = _most_hashes(policy)
    limit = policy.clustering.small_file_bytes
    shown = ((p, files.small_files(limit, most).hashes) for p, files in facts.history.partitions.items())
    hashes = {partition: found for partition, found in shown if found}
    for partition, old in _find_older(facts, policy, known).items():
        hashes[partition] = (*sorted(old), *hashes.get(partition, ()))[:most]
    texts = {partition: "".join(found) for partition, found in hashes.items()}
    kept = {}
    characters = 0
    for partition in sorted(texts, key=lambda p: (-len(texts[p]), p)):
        characters += len(partition) + len(texts[partition]) + len('"":"",')
        if characters > _MAX_TEXT:
            break
        kept[partition] = texts[partition]
    was_complete = known.is_complete and _is_usable(facts, policy, known)
    is_complete = was_complete or (bool(found_nothing_since) and facts.reaches_back_to(found_nothing_since))
    return KnownSmallFiles(
        limit,
        facts.writes[-1].ordering_time,
        is_complete and len(kept) == len(texts),
        MappingProxyType(kept),
    )


def _most_hashes(policy: TablePolicy) -> int:
    """Return how many files of one partition are kept: more than the rule needs say nothing new."""
    return max(MIN_FILES, policy.clustering.small_files or 0)


def _find_older(facts: TableFacts, policy: TablePolicy, known: KnownSmallFiles) -> dict[str, frozenset[str]]:
    """Return, by partition, the hashes of small files that are known and that the active timeline does not show."""
    if not known.hashes or not _is_usable(facts, policy, known):
        return {}
    partitions = facts.history.partitions
    found = {}
    for partition in known.hashes:
        shown = partitions[partition].shown_hashes() if partition in partitions else frozenset()
        if hashes := known.of(partition) - shown:
            found[partition] = hashes
    return found


def _is_usable(facts: TableFacts, policy: TablePolicy, known: KnownSmallFiles) -> bool:
    """Whether the active timeline shows every write since what is known was counted."""
    is_same = known.limit_bytes == policy.clustering.small_file_bytes
    return is_same and facts.reaches_back_to(known.until) and not facts.is_restored_after(known.until)


# --- The settings of the plan


def max_partitions(hudi_options: Mapping[str, str]) -> int:
    """Return from how many partitions a plan takes files at most: each has at least one group."""
    return max(1, int_of(hudi_options, MAX_GROUPS, DEFAULT_MAX_GROUPS))


def sorts(policy: TablePolicy) -> bool:
    """Whether a clustering sorts rows; then one file alone has something to gain."""
    return bool(policy.clustering.sort_columns or policy.hudi_options.get(SORT_COLUMNS))


def layout_options(policy: TablePolicy) -> Mapping[str, str]:
    """Return the settings by which rewritten rows are sorted; none where the policy sorts them not."""
    rules = policy.clustering
    if not rules.sort_columns:
        return MappingProxyType({})
    return MappingProxyType({SORT_COLUMNS: ",".join(rules.sort_columns), LAYOUT: rules.layout})


def clustering_options(policy: TablePolicy, partitions: Collection[str] = ()) -> Mapping[str, str]:
    """Return the settings by which a plan takes small files, as the policy counts them, and of some partitions only.

    Where the table's own settings choose partitions in another way, or a name has a comma, Hudi chooses.
    """
    own = policy.hudi_options
    options = {SMALL_FILE_LIMIT: str(policy.clustering.small_file_bytes)}
    options |= layout_options(policy)
    if not sorts(policy) and SINGLE_GROUP not in own:
        options[SINGLE_GROUP] = "false"  # a file alone would be rewritten by each run
    if not find_partition_filter(own).obstacle and can_be_named(partitions):
        options |= only_in(partitions)
    return MappingProxyType(options)
