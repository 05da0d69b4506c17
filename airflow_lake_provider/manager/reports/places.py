"""Places of requests that read a table's store, which may hang: a few at the same time, and fewer of one caller."""

from __future__ import annotations

from airflow_lake_provider.errors import PagesBusyError
from airflow_lake_provider.request_bounds import Held, Places


def places_of_readers(what: str, caller: str, most: int, most_of_one: int) -> Places:
    """Return the places of one kind of such requests; PagesBusyError when all, or those of one caller, are taken."""

    def refuse(held: Held) -> PagesBusyError:
        whose = f"{held.of_one} {what} of {caller} {held.name!r}" if held.is_own else f"{held.of_all} {what}"
        return PagesBusyError(f"{whose} are being read, maybe from a store that does not answer")

    return Places(most, most_of_one, refuse)
