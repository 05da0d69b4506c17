"""A run by hand has what a scheduled run of the sink has, and its form's settings over it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.sink_entry import complete, name_of

EMPTY = {"options": {}, "spark_conf": {}, "ttl_s": None, "mode": "configured", "key": [], "action": "replicate"}
ENTRY = {
    "sink": "kafka",
    "mode": "latest",
    "key": ["id"],
    "options": {"topic": "orders", "on_record_error": "skip", "source.hoodie.write.lock.provider": "L"},
    "spark_conf": {"spark.driver.memory": "2g"},
    "ttl_s": 50.0,
    "max_hold_s": 70.0,
    "max_held_bytes": None,
    "names": {"mirror": "kafka"},
}
WITHOUT = {
    "sink": "",
    "mode": "",
    "key": [],
    "ttl_s": None,
    "options": {"source.x": "1"},
    "spark_conf": {"spark.y": "2"},
}


@pytest.mark.parametrize(
    "form", [{"name": "mirror"}, {"name": "mirror", "sink": "kafka"}, {"name": "mirror", "key": None}]
)
def test_form_that_only_names_a_sink_runs_it_as_it_is_scheduled(form: dict[str, Any]) -> None:
    given = complete(EMPTY | form, ENTRY)
    assert {key: given[key] for key in ENTRY if key != "names"} == {k: v for k, v in ENTRY.items() if k != "names"}
    assert (given["name"], given["action"], given["rows"], given["seek_until"]) == ("mirror", "replicate", "", "")


def test_what_the_form_sets_goes_over_the_entry_setting_by_setting() -> None:
    own = {"options": {"on_record_error": "stop"}, "spark_conf": {"spark.executor.memory": "1g"}, "ttl_s": 9}
    given = complete(EMPTY | own | {"name": "mirror", "mode": "changes", "key": ["id", "day"]}, ENTRY)
    assert given["options"] == ENTRY["options"] | own["options"]  # type: ignore[operator]
    assert given["spark_conf"] == {"spark.driver.memory": "2g", "spark.executor.memory": "1g"}
    assert (given["mode"], given["key"], given["ttl_s"]) == ("changes", ["id", "day"], 9)


@pytest.mark.parametrize(
    "form", [{"sink": "noop"}, {"sink": "noop", "name": "copy"}, {"sink": "mine", "options": '{"a": 1}'}]
)
def test_sink_that_the_tables_file_does_not_have_gets_the_tables_own_settings(form: dict[str, Any]) -> None:
    given = complete(EMPTY | form, WITHOUT | {"names": {"mirror": "kafka"}})
    own = {"a": "1"} if "options" in form else {}
    assert (given["sink"], given["name"]) == (form["sink"], form.get("name") or form["sink"])
    assert (given["options"], given["spark_conf"]) == ({"source.x": "1"} | own, {"spark.y": "2"})
    assert (given["mode"], given["key"], given["ttl_s"]) == ("changes", [], "")


def test_manager_of_an_older_release_leaves_it_to_the_form() -> None:
    given = complete(EMPTY | {"sink": "kafka", "name": "mirror"}, {"options": {"topic": "t"}, "spark_conf": {}})
    assert (given["sink"], given["mode"], given["options"]) == ("kafka", "changes", {"topic": "t"})


@pytest.mark.parametrize(
    ("form", "entry", "said"),
    [
        ({}, WITHOUT, "the run names no sink"),
        ({"name": "mirro"}, WITHOUT | {"names": {"mirror": "kafka"}}, r"no sink 'mirro' .*: mirror \(sink kafka\)$"),
        ({"name": "mirro"}, WITHOUT, "a known one: none$"),
        (
            {"sink": "kafka"},
            WITHOUT | {"names": {"mirror": "kafka"}},
            r"of: mirror \(sink kafka\); for a new one give name",
        ),
        (
            {"name": "mirror", "sink": "file"},
            ENTRY,
            "'mirror' is a sink 'kafka' in the tables file, and the run says 'file'",
        ),
    ],
)
def test_form_that_means_no_sink_is_refused_with_those_that_there_are(
    form: dict[str, Any], entry: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        complete(EMPTY | form, entry)


def test_name_is_the_sinks_where_none_is_given() -> None:
    assert (name_of({"sink": "kafka"}), name_of({"sink": "kafka", "name": "mirror"})) == ("kafka", "mirror")
