"""Whether a table has the columns by which a clustering is to sort its rows. Pure.

Hudi finds out when it executes the plan. Then the plan stays on the timeline, and every update of its files fails.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HAVE_NO_ORDER = ("array", "binary", "map", "struct", "variant")
"""Types, as Spark names them, that Hudi's layouts do not order."""


def find_sort_problem(wanted: Sequence[str], types: Mapping[str, str]) -> str:
    """Return why rows cannot be sorted by these columns, and what to do; empty when they can.

    `types` are the table's columns with their types (`StructField.dataType.simpleString`).
    """
    for name in wanted:
        if name not in types:
            # Spark takes `Amount` for `amount`, and other readers of Hudi do not.
            by_case = {known.lower(): known for known in types}
            near = get_close_matches(name.lower(), by_case, n=1)
            hint = f"did you mean {by_case[near[0]]}?" if near else f"it has {', '.join(list(types)[:20])}"
            return f"clustering.sort_columns: the table has no column {name}: {hint}"
        if types[name].startswith(_HAVE_NO_ORDER):
            return f"clustering.sort_columns: column {name} is {types[name]:.100}, which has no order: name another"
    return ""
