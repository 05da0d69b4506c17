"""Jobs of one session that copy old dates, next to each other."""

from __future__ import annotations

from typing import Any

from lake_jobs.hudi.ancient_dates import REBASE_MODES, copy_ancient_dates


class Session:
    """Spark's settings and the local properties of a thread, as far as the function asks for them."""

    def __init__(self, **settings: str) -> None:
        self.settings = dict.fromkeys(REBASE_MODES, "EXCEPTION") | settings
        self.properties: dict[str, str | None] = {}
        self.conf: Any = self
        self.sparkContext: Any = self

    def get(self, key: str) -> str:
        return self.settings[key]

    def set(self, key: str, value: str) -> None:
        self.settings[key] = value

    def getLocalProperty(self, key: str) -> str | None:
        return self.properties.get(key)

    def setLocalProperty(self, key: str, value: str | None) -> None:
        self.properties[key] = value


def test_settings_hold_until_the_last_job_ends() -> None:
    session: Any = Session()
    first, second = copy_ancient_dates(session), copy_ancient_dates(session)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert set(session.settings.values()) == {"CORRECTED"}
    second.__exit__(None, None, None)
    assert set(session.settings.values()) == {"EXCEPTION"}


def test_tasks_outside_of_sql_see_what_the_owner_chose() -> None:
    chosen = REBASE_MODES[0]
    session: Any = Session(**{chosen: "LEGACY"})
    with copy_ancient_dates(session):
        assert session.properties == dict.fromkeys(REBASE_MODES, "CORRECTED") | {chosen: "LEGACY"}
    assert set(session.properties.values()) == {None}
    assert session.settings == dict.fromkeys(REBASE_MODES, "EXCEPTION") | {chosen: "LEGACY"}
