"""Which partitions a table's own Hudi settings let a clustering plan take, and whether fewer can be named; pure.

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
_REGEX = "hoodie.clustering.plan.strategy.partition.regex.pattern"
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
    if not strategy.startswith(_HUDI):  # nobody knows which of the settings it goes by
        return PartitionFilter(obstacle=STRATEGY_CLASS)
    names = options.get(SELECTED)
    selected = frozenset(name for name in names.split(",") if name) if names else None
    if _SETS_A_MODE in strategy:
        return PartitionFilter(selected, STRATEGY_CLASS)
    if options.get(FILTER_MODE, _SELECTED_MODE) not in {"NONE", _SELECTED_MODE}:
        return PartitionFilter(selected, FILTER_MODE)
    # Hudi goes by the pattern only without a list.
    others = (*_RANGE, _REGEX) if selected is None else _RANGE
    return PartitionFilter(selected, next((name for name in others if options.get(name)), ""))


def can_be_named(partitions: Iterable[str]) -> bool:
    """Whether Hudi can be given these as a list: it takes them with commas between."""
    names = list(partitions)
    return bool(names) and not any("," in name or not name for name in names)


def only_in(partitions: Iterable[str]) -> Mapping[str, str]:
    """Return the settings that restrict a plan to some partitions."""
    return MappingProxyType({FILTER_MODE: _SELECTED_MODE, SELECTED: ",".join(sorted(partitions))})
