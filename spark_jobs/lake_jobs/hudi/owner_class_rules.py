"""Which classes of a table's owner Hudi would load for a service."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_lake_provider.shared.hudi_settings import (
    CLUSTERING_EXECUTION_STRATEGY_CLASS,
    COMPACTION_PAYLOAD_CLASS,
    COMPACTION_STRATEGY,
    CONFLICT_RESOLUTION_STRATEGY,
    LOCK_PROVIDER,
    MERGER_CLASSES,
    PROPERTIES_FILE,
    TABLE_KEY_GENERATOR,
    WRITE_PAYLOAD_CLASS,
)
from airflow_lake_provider.shared.partition_filter import STRATEGY_CLASS
from airflow_lake_provider.table_layout import KEY_GENERATOR

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OF_EVERY_CLIENT = (LOCK_PROVIDER, CONFLICT_RESOLUTION_STRATEGY, "hoodie.index.class")
"""Settings with classes that a client makes for any service."""
OF_ROWS = (
    MERGER_CLASSES,
    KEY_GENERATOR,
    WRITE_PAYLOAD_CLASS,
    COMPACTION_PAYLOAD_CLASS,
    COMPACTION_STRATEGY,
    "hoodie.bulkinsert.user.defined.partitioner.class",
    STRATEGY_CLASS,
    CLUSTERING_EXECUTION_STRATEGY_CLASS,
    "hoodie.clustering.updates.strategy",
)
"""Settings with classes that merge, read, order or write rows."""
OF_TABLE = (
    TABLE_KEY_GENERATOR,
    COMPACTION_PAYLOAD_CLASS,
    "hoodie.table.legacy.payload.class",
)
"""What `hoodie.properties` says of classes that merge and write rows."""
_CLASS = re.compile(r"[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)*")
_OF_HUDI = "org.apache.hudi."


def name_classes(
    settings: Mapping[str, str], properties: Mapping[str, str], *, handles_rows: bool
) -> Iterator[tuple[str, str]]:
    """Yield the classes that are not Hudi's own and that a service needs, each with the place that names it."""
    keys = (*OF_EVERY_CLIENT, *OF_ROWS) if handles_rows else OF_EVERY_CLIENT
    places = [(key, "hudi_options", settings.get(key, "")) for key in keys]
    if handles_rows:
        places += [(key, PROPERTIES_FILE, properties.get(key, "")) for key in OF_TABLE]
    for key, place, value in places:
        for name in map(str.strip, value.split(",")):
            if _CLASS.fullmatch(name) and not name.startswith(_OF_HUDI):
                yield name, f"{key} of {place}"
