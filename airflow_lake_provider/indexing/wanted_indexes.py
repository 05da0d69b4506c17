"""Which indexes each of some tables must have: a sensor, and its trigger after it, compare timelines with it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.indexing.index_spec import find_buildable, parse_indexes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.config.service_policies import IndexingPolicy
    from airflow_lake_provider.indexing.index_spec import IndexSpec
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot


@dataclass(frozen=True, slots=True)
class WantedIndexes:
    """Indexes by base path, as the watch spells it; a table that is not named needs none.

    `texts` is what `parse_wanted` was given, for a trigger that is stored meanwhile.
    """

    by_base_path: Mapping[str, tuple[IndexSpec, ...]] = field(default_factory=lambda: MappingProxyType({}))
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def find_missing(self, base_path: str, snapshot: TimelineSnapshot) -> tuple[str, ...]:
        """Return what can be built now and is not there, by its folders in the metadata table."""
        wanted = self.by_base_path.get(base_path, ())
        return tuple(spec.partition for spec in find_buildable(wanted, snapshot.properties, snapshot.timeline))

    def to_dict(self) -> dict[str, list[str]]:
        """Return the spellings as JSON has them; `parse_wanted` reads them back."""
        return {base_path: list(indexes) for base_path, indexes in self.texts.items()}


def parse_wanted(texts: Mapping[str, Sequence[str]]) -> WantedIndexes:
    """Parse spellings by base path. Raises ConfigError that names what is allowed."""
    kept = {base_path: tuple(indexes) for base_path, indexes in texts.items() if indexes}
    specs = {base_path: parse_indexes(indexes) for base_path, indexes in kept.items()}
    return WantedIndexes(MappingProxyType(specs), MappingProxyType(kept))


def indexes_of(rules: IndexingPolicy) -> tuple[str, ...]:
    """Return what a policy wants built: nothing where it is switched off."""
    return rules.indexes if rules.enabled else ()
