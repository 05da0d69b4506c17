"""A tables file with an entry for each of ten thousand tables, and texts that are made to cost."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest
import yaml

from airflow_lake_provider.config.tables_file import (
    MAX_DEPTH,
    MAX_MISTAKES,
    find_mistakes,
    parse_tables,
    parse_tables_file,
)
from airflow_lake_provider.config.tables_source import Pause, TablesSource, pause_in_overrides
from airflow_lake_provider.errors import ConfigError
from tests.support.patience import patient

TABLES = 10_000
ENTRY = (
    "  - base_path: /lake/t{0}\n    name: t{0}\n    compaction: {{delta_commits: 5}}\n"
    "    clean: {{commits: 5, retained_commits: 10}}\n"
)
LARGE = "tables:\n" + "".join(ENTRY.format(number) for number in range(TABLES))
CPU_S = 3.0
"""It takes 0.8 s, and more on a machine that is shared; it took 4.4 s."""


def test_ten_thousand_entries_load_within_a_moment() -> None:
    begun_s = time.process_time()
    tables = parse_tables_file(LARGE, "tables.yaml")
    assert time.process_time() - begun_s < patient(CPU_S)
    assert len(tables.entries) == TABLES
    layers = tables.layers_of("/lake/t9999", "t9999")
    assert 4 * (TABLES - 1) + 4 in [layer.find_line("compaction.delta_commits", is_whole=False) for layer in layers]


def test_pause_in_a_large_variable_costs_as_much_as_a_few_readings_of_it() -> None:
    text = json.dumps({"tables": [{"base_path": f"/lake/t{number}", "mode": "observe"} for number in range(TABLES)]})
    begun_s = time.process_time()
    parse_tables(text, "the Variable")
    read_s = time.process_time()
    paused = pause_in_overrides(text, "/lake/other", "other", Pause(is_paused=True, service="clean", by="olga"))
    assert time.process_time() - read_s < 7 * (read_s - begun_s)
    first, *rest = json.loads(paused)["tables"]
    assert (first, len(rest)) == ({"base_path": "/lake/other", "clean": {"paused": "olga"}}, TABLES)


def test_libyaml_reads_it() -> None:
    assert yaml.__with_libyaml__, "the installed PyYAML has no libyaml: large files take five times as long"


@pytest.mark.parametrize(
    "deep",
    ["[" * 100_000, "- " * 100_000, "{a: " * 50_000, "tables: " + "[" * MAX_DEPTH],
    # A test's name is in the environment of each process that it starts.
    ids=["lists", "items", "mappings", "just too deep"],
)
def test_deep_text_is_refused_and_ends_no_process(deep: str) -> None:
    # In a process of its own: libyaml's recursion has no end but that of the stack.
    code = (
        "import sys\n"
        "from airflow_lake_provider.config.tables_file import parse_tables\n"
        "from airflow_lake_provider.errors import ConfigError\n"
        "try:\n    parse_tables(sys.stdin.read(), 't.yaml')\n"
        "except ConfigError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=deep, capture_output=True, text=True, timeout=120, check=True
    )
    assert f"more than {MAX_DEPTH} lists and mappings in each other" in done.stdout
    assert done.stdout.startswith("t.yaml:")


def test_many_mistakes_cost_no_more_than_the_first_ones() -> None:
    # Each costs a search for its line and for what may have been meant: forty thousand took many minutes.
    text = "".join(f"k{number}: &a{number} 1\n" for number in range(40_000))
    begun_s = time.process_time()
    with pytest.raises(ConfigError, match=r"tables\.yaml:1: unknown setting 'k0'"):
        parse_tables(text, "tables.yaml")
    assert len(find_mistakes(text, "tables.yaml")) == MAX_MISTAKES
    assert time.process_time() - begun_s < 10 * CPU_S


def test_aliases_that_grow_are_refused() -> None:
    names = [f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]" for number in range(1, 9)]
    with pytest.raises(ConfigError, match="too large, or its aliases make it so"):
        parse_tables("\n".join(["a0: &a0 [x]", *names]), "t.yaml")


def test_settings_are_answered_while_a_slow_source_is_read() -> None:
    is_slow, may_end, now = threading.Event(), threading.Event(), [0.0]

    def read_overrides() -> str:
        if is_slow.is_set():
            assert may_end.wait(60)
            return "tables: [{base_path: /lake/late}]"
        return ""

    source = TablesSource("", read_overrides, monotonic_s=lambda: now[0])
    first = source.load()
    is_slow.set()
    now[0] += 3600
    reader = threading.Thread(target=source.load)
    reader.start()
    try:
        while not source._lock.locked():
            time.sleep(0.001)
        assert source.load() is first
    finally:
        may_end.set()
        reader.join()
    assert len(source.load().overrides) == 1
