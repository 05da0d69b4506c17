"""What a table may ever set of its own policy, as `table_may_set` of the tables file names it."""

from __future__ import annotations

import re
from typing import Annotated

from airflow_lake_provider.config.kinds import Text

WHOLE = (
    *("compaction.delta_commits", "clustering.commits", "clustering.small_files", "clean.commits"),
    *("clean.retained_commits", "clean.retained_hours"),
)
FRACTIONS = (
    "weight",
    "compaction.log_to_base_ratio",
    "compaction.max_age_s",
    "clustering.max_age_s",
    "clean.max_age_s",
)
OTHERS = ("clustering.enabled", "clustering.sort_columns", "clustering.layout")
NUMBER = r"\d{1,9}(?:\.\d{1,3})?"
BOUNDED = re.compile(rf"(\S+) ({NUMBER})\.\.({NUMBER})")


def _any_of(*names: str) -> str:
    return "|".join(re.escape(name) for name in names)


MaySet = Annotated[
    str,
    Text(
        rf"(?:{_any_of(*WHOLE, *FRACTIONS)}) {NUMBER}\.\.{NUMBER}|{_any_of(*OTHERS)}",
        f"a number with its bounds, such as `compaction.delta_commits 2..50` ({', '.join((*WHOLE, *FRACTIONS))}), or "
        f"{', '.join(OTHERS)}",
    ),
]
