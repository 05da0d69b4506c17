"""Plain SQL, as a database's own client would send it: a judge that shares no code with the sinks."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def run_sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run one statement in a connection and a transaction of its own; return its rows, none where it has none."""
    engine = sa.create_engine(url)
    try:
        with engine.begin() as connection:
            found = connection.execute(sa.text(statement))
            return [tuple(row) for row in found] if found.returns_rows else []
    finally:
        engine.dispose()
