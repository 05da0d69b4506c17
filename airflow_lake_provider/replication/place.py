"""Names of a table in the places that a sink writes to: a path, a topic, a table of a database.

A table's writer chooses its name. So a name that would lead out of its place is refused, not changed: two names
must not become one place.
"""

from __future__ import annotations

import re

from airflow_lake_provider.errors import ConfigError

_PLAIN = re.compile(r"[\w-]+")
_IN_PATH = re.compile(r"[\w-][\w.-]*")
"""A dot begins no folder, so that none is `..` or hidden; elsewhere it is only a character."""


def put_name(option: str, what: str, name: str, base_path: str) -> str:
    """Return a name as it is where it may stand in an option's place. Raises ConfigError for one that would leave it.

    In topics and in tables of databases a dot separates names, so it may not be part of one.
    """
    allowed, words = (_IN_PATH, ", and dots inside") if option == "path" else (_PLAIN, "")
    if allowed.fullmatch(name):
        return name
    raise ConfigError(
        f"the sink of table {base_path}: {what} {name!r} must not choose a place ({option}): it may have letters, "
        f"digits, - and _{words}; rename the table, or write the place without {{{what}}} in an entry of its own"
    )
