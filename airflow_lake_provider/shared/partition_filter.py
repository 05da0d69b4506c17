"""Which partitions a table's own Hudi settings let a clustering plan take, and the settings that name fewer. Pure.

Source: Hudi `PartitionAwareClusteringPlanStrategy`, `ClusteringPlanPartitionFilter`, `ClusteringPlanStrategy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SELECTED = "hoodie.clustering.plan.strategy.partition.selected"
FILTER_MODE = "hoodie.clustering.plan.partition.filter.mode"
STRATEGY_CLASS = "hoodie.clustering.plan.strategy.class"
SMALL_FILE_LIMIT = "hoodie.clustering.plan.strategy.small.file.limit"
"""A base file below it may be taken (314,572,800 bytes by default)."""
TARGET_FILE_BYTES = "hoodie.clustering.plan.strategy.target.file.max.bytes"
MAX_GROUP_BYTES = "hoodie.clustering.plan.strategy.max.bytes.per.group"
MAX_GROUPS = "hoodie.clustering.plan.strategy.max.num.groups"
SORT_COLUMNS = "hoodie.clustering.plan.strategy.sort.columns"
LAYOUT = "hoodie.layout.optimize.strategy"
SINGLE_GROUP = "hoodie.clustering.plan.strategy.single.group.clustering.enabled"
"""Whether a file is rewritten that has no other to be merged with (Hudi's default: yes)."""
DEFAULT_TARGET_FILE_BYTES = 1024**3
DEFAULT_MAX_GROUP_BYTES = 2 * 1024**3
DEFAULT_MAX_GROUPS = 30
REGEX = "hoodie.clustering.plan.strategy.partition.regex.pattern"
_RANGE = (
    "hoodie.clustering.plan.strategy.cluster.begin.partition",
    "hoodie.clustering.plan.strategy.cluster.end.partition",
)
_SELECTED_MODE = "SELECTED_PARTITIONS"
# Hudi takes the old name of a strategy for its filter mode.
_SETS_A_MODE = "RecentDays"
_HUDI = "org.apache.hudi."


@dataclass(frozen=True, slots=True)
class PartitionFilter:
    """What the settings choose. `selected` is the list that they name, None without one.

    `obstacle` is the setting that chooses in a way which a list of partitions would override; empty without one.
    """

    selected: frozenset[str] | None = None
    obstacle: str = ""


def find_partition_filter(options: Mapping[str, str]) -> PartitionFilter:
    """Return the filter that a table's Hudi settings make."""
    strategy = options.get(STRATEGY_CLASS) or _HUDI
    if not strategy.startswith(_HUDI):  # which settings it follows is unknown
        return PartitionFilter(obstacle=STRATEGY_CLASS)
    names = options.get(SELECTED)
    selected = frozenset(name for name in names.split(",") if name) if names else None
    if _SETS_A_MODE in strategy:
        return PartitionFilter(selected, STRATEGY_CLASS)
    if options.get(FILTER_MODE, _SELECTED_MODE) not in {"NONE", _SELECTED_MODE}:
        return PartitionFilter(selected, FILTER_MODE)
    # Hudi uses the pattern only without a list.
    others = (*_RANGE, REGEX) if selected is None else _RANGE
    return PartitionFilter(selected, next((name for name in others if options.get(name)), ""))


def can_be_named(partitions: Iterable[str]) -> bool:
    """Whether Hudi can be given these as a list: it takes them with commas between."""
    names = list(partitions)
    return bool(names) and not any("," in name or not name for name in names)


def only_in(partitions: Iterable[str]) -> Mapping[str, str]:
    """Return the settings that restrict a plan to some partitions."""
    return MappingProxyType({FILTER_MODE: _SELECTED_MODE, SELECTED: ",".join(sorted(partitions))})


def int_of(options: Mapping[str, str], name: str, default: int) -> int:
    """Return a setting's number; the default where it is not set, or is no number (Hudi refuses that itself)."""
    text = options.get(name, "").strip()
    return int(text) if text.isdecimal() else default
