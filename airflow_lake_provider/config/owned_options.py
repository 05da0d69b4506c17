"""Hudi settings that our services set themselves, so that nobody else's value for them could hold.

A service's own settings come last. A value in `hudi_options` would be replaced without a word: seven days of retention
would become ten commits. So each of these is refused by name, with the setting of ours that says the same.
Hudi's older spellings count as well (`ConfigProperty.withAlternatives` in `HoodieCleanConfig` and others of 1.2.0).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_RETENTION = (
    "use clean.retained_commits; retention by hours or by file versions is not supported yet: for that, set "
    "clean.enabled: false and archive.enabled: false, and let the writer clean and archive"
)
_TRIGGER = "whether a service is due is said by {0} of the tables file"
_NEVER = "every service sets it itself; take it out"

_BY_ADVICE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        _RETENTION: (
            "hoodie.clean.policy",
            "hoodie.cleaner.policy",
            "hoodie.clean.commits.retained",
            "hoodie.cleaner.commits.retained",
            "hoodie.clean.hours.retained",
            "hoodie.cleaner.hours.retained",
            "hoodie.clean.fileversions.retained",
            "hoodie.cleaner.fileversions.retained",
        ),
        "use archive.min_commits": ("hoodie.keep.min.commits",),
        "use archive.max_commits": ("hoodie.keep.max.commits",),
        "use ttl.retained_days": ("hoodie.partition.ttl.strategy.days.retain",),
        "use ttl.max_partitions": ("hoodie.partition.ttl.strategy.max.delete.partitions",),
        "use logcompaction.log_files": ("hoodie.log.compaction.blocks.threshold",),
        "use logcompaction.enabled": ("hoodie.log.compaction.enable",),
        "use indexing.check_timeout_s": ("hoodie.metadata.index.check.timeout.seconds",),
        _TRIGGER.format("clean.commits and clean.max_age_s"): (
            "hoodie.clean.trigger.strategy",
            "hoodie.clean.trigger.max.commits",
            "hoodie.clean.max.commits",
        ),
        _TRIGGER.format("compaction.delta_commits and its other rules"): (
            "hoodie.compact.inline.trigger.strategy",
            "hoodie.compact.inline.max.delta.commits",
        ),
        _TRIGGER.format("clustering.commits and its other rules"): (
            "hoodie.clustering.inline.max.commits",
            "hoodie.clustering.async.max.commits",
        ),
        _NEVER: (
            "hoodie.metadata.auto.delete.partitions",
            "hoodie.table.service.manager.enabled",
            "hoodie.table.services.enabled",
            "hoodie.clean.failed.writes.policy",
            "hoodie.cleaner.policy.failed.writes",
            "hoodie.clustering.enable.expirations",
            "hoodie.clean.automatic",
            "hoodie.archive.automatic",
            "hoodie.compact.inline",
            "hoodie.compact.schedule.inline",
            "hoodie.clustering.inline",
            "hoodie.datasource.clustering.inline.enable",
            "hoodie.clustering.schedule.inline",
            "hoodie.clustering.async.enabled",
            "hoodie.datasource.clustering.async.enable",
            "hoodie.log.compaction.inline",
            "hoodie.partition.ttl.inline",
            "hoodie.write.auto.upgrade",
            "hoodie.write.table.version",
        ),
    }
)

OWNED_OPTIONS: Mapping[str, str] = MappingProxyType(
    {key: advice for advice, keys in _BY_ADVICE.items() for key in keys}
)
"""Each such setting of Hudi, with what to do instead."""


def find_owned_option(hudi_options: Mapping[str, str]) -> str | None:
    """Say in one sentence which of the options a service owns, and what to use instead; None when none is."""
    for key in hudi_options:
        if key in OWNED_OPTIONS:
            return f"{key} is set by our services: {OWNED_OPTIONS[key]}"
    return None
