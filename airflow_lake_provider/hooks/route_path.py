"""The path of a route, made of names that come from a run's conf, an XCom or an answer."""

from __future__ import annotations

from urllib.parse import quote

from airflow_lake_provider.errors import MalformedRequestError


def route(*parts: str) -> str:
    """Return the path of a route. Raises MalformedRequestError for a part that could lead to another route.

    A client or a proxy takes `..` for the folder above, also where its slash is escaped.
    """
    for part in parts:
        if not part.strip(".") or "/" in part or "\\" in part:
            raise MalformedRequestError(f"{part[:100]!r} is no name of a table, a sink or a hold")
    return "/" + "/".join(quote(part, safe="") for part in parts)
