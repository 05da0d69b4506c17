"""Holds cleaning and archiving back for the readers of a table's changes. Pure.

Hudi has no consumer's position: it retains so many commits, counted from the newest one when it plans. So the position
is turned into a count, at the last moment, with room for the commits that complete until the plan is made. What a
plan passes all the same, replication finds out and answers with a snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from job_contract import SAFEPOINT, Service, commits_to_keep

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_RETAINED, _LEAST, _MOST = "hoodie.clean.commits.retained", "hoodie.keep.min.commits", "hoodie.keep.max.commits"
# Hudi's own defaults.
_RETAINED_DEFAULT, _LEAST_DEFAULT, _MOST_DEFAULT = 10, 20, 30


def hold_back(service: Service, options: Mapping[str, str], completed: Collection[str]) -> dict[str, str]:
    """Return the options with retention raised to the safepoint, which is taken out of them.

    `completed` are those of `commits_to_keep`.
    """
    options = dict(options)
    safepoint = options.pop(SAFEPOINT, "")
    if not safepoint or service not in (Service.CLEAN, Service.ARCHIVE):
        return options
    needed = commits_to_keep(completed, safepoint)
    retained = int(options.get(_RETAINED, _RETAINED_DEFAULT))
    if needed > retained or "hoodie.clean.policy" in options:
        # Another policy does not count commits.
        options["hoodie.clean.policy"] = "KEEP_LATEST_COMMITS"
    options[_RETAINED] = str(max(retained, needed))
    if service is Service.ARCHIVE:
        # Hudi wants retained < least < most, and cleans by what is on the active timeline.
        least = max(int(options.get(_LEAST, _LEAST_DEFAULT)), int(options[_RETAINED]) + 1)
        options[_LEAST] = str(least)
        options[_MOST] = str(max(int(options.get(_MOST, _MOST_DEFAULT)), least + 1))
    return options
