"""Each example of the documentation is read as its reader would use it: tables files, tokens, `airflow.cfg`, DAGs."""

from __future__ import annotations

import configparser
import json
import re
import textwrap
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pendulum
import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_lake_provider.config.access import parse_tokens
from airflow_lake_provider.config.settings import airflow_options
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.hooks import reader_hold
from tests.support.fixture_tables import unpack

DOCS = Path(__file__).parents[3] / "docs"
_BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
OPTIONAL = ("airflow.providers.slack",)
"""Packages that an example may use although this one does not need them."""
RUN_ELSEWHERE = {"engines.md"}
"""Its Python is run whole by `test_documented_engine.py`."""


@dataclass(frozen=True)
class Example:
    """One code block: page, first line, language, text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class SparkOfTheReader:
    """A session and a frame of the writer's own job: each attribute and each call is another one."""

    def __getattr__(self, name: str) -> SparkOfTheReader:
        return self

    def __call__(self, *arguments: object, **options: object) -> SparkOfTheReader:
        return self


def list_examples(*languages: str) -> list[Example]:
    found = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for block in _BLOCK.finditer(text):
            if block[1] in languages:
                line = text.count("\n", 0, block.start()) + 1
                found.append(Example(page.name, line, block[1], textwrap.dedent(block[2])))
    return found


def in_a_table(text: str, key: str) -> str:
    """Return a tables file of one table with this text as its entry, or below `key` of it."""
    indented = textwrap.indent(text, "      " if key else "    ")
    return "tables:\n  - base_path: /lake/orders\n" + (f"    {key}:\n" if key else "") + indented


@pytest.mark.parametrize("example", list_examples("yaml"), ids=str)
def test_yaml_is_a_tables_file_or_tokens_without_a_mistake(example: Example) -> None:
    if "rights:" in example.text:
        text = example.text if example.text.startswith("tokens:") else "tokens:\n" + example.text
        assert parse_tokens(text, str(example))
        return
    text = example.text
    if text.startswith(("- {sink:", "- sink:")):
        text = in_a_table(text, "replication")
    elif text.startswith("indexing:"):
        text = in_a_table(text, "")
    parse_tables_file(text, str(example)).policy_for("/lake/orders", "orders")


@pytest.mark.parametrize("example", list_examples("ini"), ids=str)
def test_ini_sets_options_that_there_are(example: Example) -> None:
    parser = configparser.ConfigParser(inline_comment_prefixes=(";", "#"), interpolation=None)
    parser.read_string(example.text)
    if parser.has_section("lake"):
        assert set(parser["lake"]) <= set(airflow_options())


@pytest.mark.parametrize("example", list_examples("json"), ids=str)
def test_json_is_json(example: Example) -> None:
    assert isinstance(json.loads(example.text), dict)


@pytest.mark.parametrize("example", list_examples("properties"), ids=str)
def test_properties_are_settings_of_hudi(example: Example) -> None:
    lines = [line for line in example.text.splitlines() if line and not line.startswith("#")]
    assert all(re.match(r"hoodie\.[\w.]+=\S", line) for line in lines), lines


@pytest.mark.parametrize("example", list_examples("python"), ids=str)
def test_python_runs(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DAGs make their tasks, and a guard opens its table; a reader holds without a manager."""
    monkeypatch.setattr(reader_hold, "hudi_hold", lambda table, **wanted: nullcontext())
    if example.page in RUN_ELSEWHERE or any(package in example.text for package in OPTIONAL):
        compile(example.text, str(example), "exec")
        return
    table = unpack("cow_v9", tmp_path)
    code = compile(example.text.replace("/lake/orders", str(table.path)), str(example), "exec")
    spark = SparkOfTheReader()
    with DAG("documented", schedule=None, start_date=pendulum.datetime(2026, 1, 1)) as dag:
        later = EmptyOperator(task_id="later")
        exec(code, {"write_orders": later, "spark": spark, "orders": spark, "options": {}})
    if "Sensor(" in example.text:
        assert len(dag.tasks) > 1
