"""Each option of a built-in sink is in the docs, and a test takes it from a tables file to a real server."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from airflow_lake_provider.sink_options.entry import BUILT_IN_FORMATS, CONNECTION
from airflow_lake_provider.sink_options.kafka import take_kafka
from airflow_lake_provider.sink_options.options import TakenOptions
from airflow_lake_provider.sink_options.run import take_run
from airflow_lake_provider.sink_options.stores import take_database, take_file, take_hudi

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests" / "integration"
MATRIX = TESTS / "replication" / "test_from_the_tables_file.py"
PAGES = "".join(
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("replication.md", "replication-sinks.md")
)
TAKE: Mapping[str, Callable[[TakenOptions], object]] = {
    "kafka": lambda options: take_kafka(options, "changes"),
    "file": take_file,
    "database": take_database,
    "hudi": take_hudi,
    "noop": lambda options: None,
}
LEAST = {
    "topic": "t", "bootstrap_servers": "b:9", "format": "debezium", "path": "/x", "url": "sqlite://", "table": "t",
}  # fmt: skip
ELSEWHERE = {"hudi": tuple((TESTS / "spark").glob("test_replication_to_hudi*.py"))}
"""Where a sink needs Spark."""


def options_of(sink: str) -> set[str]:
    """Return the names of a sink's options, those of the run included; one that ends with a dot begins others."""
    forms = {"kafka": "debezium"}
    given = {name: text for name, text in LEAST.items() if name != "format"} | {"format": forms.get(sink, "json")}
    taken = TakenOptions(given, sink)
    take_run(taken)
    TAKE[sink](taken)
    return set(taken._names)


def names(text: str, option: str) -> bool:
    end = "" if option.endswith(".") else r"(?![\w.])"
    return re.search(rf"(?<![\w.]){re.escape(option)}{end}", text) is not None


def test_each_sink_has_its_options_here() -> None:
    assert TAKE.keys() == BUILT_IN_FORMATS.keys()


@pytest.mark.parametrize("sink", TAKE)
def test_each_option_is_in_the_docs(sink: str) -> None:
    assert [option for option in sorted(options_of(sink)) if not names(PAGES, option)] == []


@pytest.mark.parametrize("sink", TAKE)
def test_each_option_goes_from_a_tables_file_to_a_server(sink: str) -> None:
    tested = "".join(path.read_text(encoding="utf-8") for path in (MATRIX, *ELSEWHERE.get(sink, ())))
    assert [option for option in sorted(options_of(sink)) if not names(tested, option)] == []


def test_each_setting_that_the_docs_list_is_an_option() -> None:
    listed = {
        setting
        for sentence in re.findall(r"^Settings: (.*?)\.(?:\s|$)", PAGES, re.DOTALL | re.MULTILINE)
        for setting in re.findall(r"`([a-z_.]+)(?:[`:<])", sentence)
    }
    known = {CONNECTION} | {option for sink in TAKE for option in options_of(sink)}
    assert listed - known == set()
    assert {"topic", "url", "path", "evolve", "partitions"} <= listed


@pytest.mark.parametrize("sink", BUILT_IN_FORMATS)
def test_each_format_has_a_row(sink: str) -> None:
    tested = MATRIX.read_text(encoding="utf-8")
    lacking = [form for form in BUILT_IN_FORMATS[sink] if form != "json" and f'"format": "{form}"' not in tested]
    assert lacking == []
