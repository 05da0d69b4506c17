"""Settings of the Variable over those of the file: merged, validated equally, never in force when wrong."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.tables_config import Discovery, TablesConfig
from airflow_lake_provider.config.tables_file import build_config, load_values, parse_tables, parse_tables_file
from airflow_lake_provider.config.tables_source import OVERRIDES_MAX_AGE_S, Pause, TablesSource, pause_in_overrides
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.job_contract import Service

FILE = """
defaults: {compaction: {delta_commits: 4}, hudi_options: {hoodie.a: 1, hoodie.b: 1}}
limits: {pools: {heavy: 2, light: 9}}
tables:
  - base_path: /lake/sales/*
    clean: {commits: 7}
  - base_path: /lake/hr/staff
    archive: {min_commits: 40, max_commits: 50}
"""


def merged(variable: str, file: str = FILE) -> TablesConfig:
    return build_config(parse_tables(file, "t.yaml"), parse_tables(variable, "Variable lake_tables"))


def test_overrides_are_laid_over_defaults_and_over_what_the_file_says_of_a_table() -> None:
    tables = merged("""{"defaults": {"compaction": {"delta_commits": 9}, "hudi_options": {"hoodie.b": 2}},
        "limits": {"pools": {"heavy": 1}, "queues": {"q": 3}},
        "tables": [{"base_path": "/lake/sales/*", "name": "orders", "clean": {"commits": 3}, "pool": "heavy"},
                   {"base_path": "/lake/extra"}]}""")
    orders = tables.policy_for("/lake/sales/orders", "orders")
    assert (orders.clean.commits, orders.compaction.delta_commits, orders.pool) == (3, 9, "heavy")
    assert orders.hudi_options == {"hoodie.a": "1", "hoodie.b": "2"}
    clicks = tables.policy_for("/lake/sales/clicks", "clicks")
    assert (clicks.clean.commits, clicks.pool) == (7, "")
    assert tables.policy_for("/elsewhere", "x").compaction.delta_commits == 9
    assert (dict(tables.limits.pools), dict(tables.limits.queues)) == ({"heavy": 1, "light": 9}, {"q": 3})
    assert list(tables.named_tables()) == [("/lake/hr/staff", "staff"), ("/lake/extra", "extra")]


def test_overrides_that_contradict_the_file_are_refused_where_one_table_can_be_meant_by_both() -> None:
    retained = "{tables: [{base_path: %s, clean: {retained_commits: 30}}]}"
    with pytest.raises(ConfigError, match=r"Variable lake_tables:1: archive.min_commits \(20\)"):
        merged(retained % "/lake/sales/orders")
    assert merged(retained % "/lake/hr/staff", FILE.replace("/lake/sales/*", "/lake/hr/other")) is not None
    with pytest.raises(ConfigError, match="unknown setting 'pol' in a table"):
        merged("{tables: [{name: x, pol: heavy}]}")


def test_discover_entries_are_policies_of_the_tables_below_their_root() -> None:
    tables = parse_tables_file("tables: [{discover: 'file:///lake//landing/', discover_depth: 2, pool: p}]", "t.yaml")
    assert tables.discoveries == (Discovery("/lake/landing", 2),)
    assert tables.policy_for("/lake/landing/a/b", "b").pool == "p"
    assert list(tables.named_tables()) == []


@dataclass
class FakeVariable:
    text: str = ""
    reads: int = 0
    now_s: float = 0.0
    problem: str = ""

    def read(self) -> str:
        self.reads += 1
        if self.problem:
            raise ConfigError(self.problem)
        return self.text

    def pass_time(self) -> None:
        self.now_s += OVERRIDES_MAX_AGE_S


def test_source_reads_the_variable_once_in_a_while_and_keeps_the_last_good_one(tmp_path: Path) -> None:
    path, variable = tmp_path / "t.yaml", FakeVariable("{defaults: {pool: first}}")
    path.write_text("defaults: {queue: q}", encoding="utf-8")
    source = TablesSource(str(path), variable.read, "Variable lake_tables", lambda: variable.now_s)
    for _ in range(5):
        assert (source.load().defaults.pool, source.load().defaults.queue) == ("first", "q")
    assert variable.reads == 1
    variable.text = "{defaults: {pool: 5}}"
    variable.pass_time()
    assert source.load().defaults.pool == "first"
    assert source.problem.startswith("Variable lake_tables:1: pool is '5', allowed: a name")
    path.write_text("defaults: {queue: other}", encoding="utf-8")
    assert (source.load().defaults.pool, source.load().defaults.queue) == ("first", "other"), "the file goes on"
    variable.problem = "Variable lake_tables cannot be read"
    variable.pass_time()
    assert source.load().defaults.pool == "first"
    assert source.problem == "Variable lake_tables cannot be read"
    variable.problem, variable.text = "", "{defaults: {pool: second}}"
    variable.pass_time()
    assert (source.load().defaults.pool, source.problem) == ("second", "")
    variable.text = ""
    variable.pass_time()
    assert source.load().defaults.pool == ""


def test_source_keeps_the_last_good_whole_when_file_and_variable_contradict_each_other(tmp_path: Path) -> None:
    path, variable = tmp_path / "t.yaml", FakeVariable("{defaults: {clean: {retained_commits: 15}}}")
    path.write_text("defaults: {archive: {min_commits: 16}}", encoding="utf-8")
    source = TablesSource(str(path), variable.read, "Variable lake_tables", lambda: variable.now_s)
    assert source.load().defaults.archive.min_commits == 16
    path.write_text("defaults: {archive: {min_commits: 12}}", encoding="utf-8")
    assert source.load().defaults.archive.min_commits == 16
    assert "archive.min_commits (12) must be greater than clean.retained_commits (15)" in source.problem


def test_source_without_any_good_configuration_says_what_is_wrong(tmp_path: Path) -> None:
    source = TablesSource(str(tmp_path / "missing.yaml"), lambda: "")
    with pytest.raises(ConfigError, match="cannot be read"):
        source.load()


@pytest.mark.parametrize("page", ["docs/operations.md", "docs/tables-file.md"])
def test_examples_in_the_documents_are_right(page: str) -> None:
    text = (Path(__file__).parents[3] / page).read_text(encoding="utf-8")
    examples = [block.split("```")[0] for block in text.split("```yaml\n")[1:]]
    assert [parse_tables_file(example, page).entries != () for example in examples] == [True] * len(examples)
    assert examples


def test_the_first_entry_that_matches_is_the_one_of_a_reading_from_top_to_bottom() -> None:
    rng = random.Random(20261122)
    paths = ["/lake/a", "/lake/b", "/lake/[odd]", "/lake/a/b"]
    for _ in range(300):
        entries = [
            {
                "base_path": rng.choice([*paths, "/lake/*", "/lake/?", ""]),
                "name": rng.choice(["", "x*", "y"]),
                "retries": number,
            }
            for number in range(rng.randrange(6))
        ]
        entries = [entry for entry in entries if entry["base_path"] or entry["name"]]
        tables = parse_tables_file(json.dumps({"tables": entries}), "t.yaml")
        path, name = rng.choice(paths), rng.choice(["x1", "y", "z"])
        fitting = [
            entry["retries"]
            for entry in entries
            if (not entry["base_path"] or path == entry["base_path"] or fnmatchcase(path, str(entry["base_path"])))
            and (not entry["name"] or fnmatchcase(name, str(entry["name"])))
        ]
        assert tables.policy_for(path, name).retries == (fitting[0] if fitting else TablePolicy().retries)


# --- One table, or one service of it, paused by the page

PAUSED = Pause(is_paused=True, by="ada")


@pytest.mark.parametrize(
    "variable",
    [
        pytest.param("", id="no-variable"),
        pytest.param('{"defaults": {"pool": "heavy"}}', id="only-defaults"),
        pytest.param('{"tables": [{"base_path": "/lake/sales/*", "clean": {"commits": 3}}]}', id="pattern"),
        pytest.param('{"tables": [{"name": "ord*", "pool": "p", "clean": {"commits": 3}}]}', id="pattern-of-names"),
        pytest.param('{"tables": [{"base_path": "file:///lake/sales/orders/", "pool": "p"}]}', id="other-spelling"),
        pytest.param("tables:\n- base_path: /lake/sales/orders\n  clean: {commits: 3}\n", id="yaml"),
        pytest.param('{"tables": [{"base_path": "/lake/hr/*", "paused": "bob"}]}', id="others-are-paused"),
    ],
)
def test_a_pause_holds_one_table_back_and_changes_nothing_else(variable: str) -> None:
    path, others = "/lake/sales/orders", ("/lake/sales/clicks", "/lake/hr/staff", "/lake/x")
    paused = pause_in_overrides(variable, path, "orders", PAUSED)
    before, after = merged(variable), merged(paused)
    assert {after.policy_for(path, "orders").find_pause(service, 0) for service in Service} == {"ada"}
    mine = after.policy_for(path, "orders").model_copy(update={"paused": None})
    assert mine == before.policy_for(path, "orders")
    assert all(before.policy_for(one, "staff") == after.policy_for(one, "staff") for one in others)
    assert merged(pause_in_overrides(paused, path, "orders", PAUSED)) == after
    assert merged(pause_in_overrides(paused, path, "orders", Pause(is_paused=False))) == before


@pytest.mark.parametrize(
    "variable",
    [
        pytest.param("", id="no-variable"),
        pytest.param('{"tables": [{"base_path": "/lake/sales/*", "clean": {"commits": 3}}]}', id="pattern"),
        pytest.param("tables:\n- base_path: /lake/sales/orders\n  clean: {commits: 3}\n", id="yaml"),
        pytest.param('{"tables": [{"base_path": "/lake/sales/orders", "mode": "observe"}]}', id="table-is-observed"),
        pytest.param('{"tables": [{"base_path": "/lake/sales/orders", "clean": {}}]}', id="empty-section"),
    ],
)
@pytest.mark.parametrize("service", ["clean", "clustering"])
def test_a_pause_of_a_service_leaves_its_rules_the_other_services_and_the_other_tables(
    variable: str, service: str
) -> None:
    path, others = "/lake/sales/orders", ("/lake/sales/clicks", "/lake/hr/staff", "/lake/x")
    paused = pause_in_overrides(variable, path, "orders", Pause(True, service, "ada: a backfill"))
    before, after = merged(variable), merged(paused)
    mine = after.policy_for(path, "orders")
    assert [one.value for one in Service if mine.find_pause(one, 0)] == [service]
    assert mine.find_pause(service, 0) == "ada: a backfill"
    section = getattr(mine, service).model_copy(update={"paused": None})
    assert mine.model_copy(update={service: section}) == before.policy_for(path, "orders")
    assert all(before.policy_for(one, "staff") == after.policy_for(one, "staff") for one in others)
    resumed = pause_in_overrides(paused, path, "orders", Pause(False, service))
    for one, name in ((path, "orders"), *((other, "staff") for other in others)):
        assert merged(resumed).policy_for(one, name) == before.policy_for(one, name)
    with pytest.raises(ConfigError, match="no entry of the Variable"):
        pause_in_overrides(resumed, path, "orders", Pause(False, service))


@pytest.mark.parametrize(
    "written", ['"2026-11-28T06:00:00+01:00"', "2026-11-28T05:00:00Z"], ids=["text", "time-of-yaml"]
)
def test_pause_of_a_service_may_end_by_itself(written: str) -> None:
    policy = merged(f"defaults:\n  clean: {{paused: ada, paused_until: {written}}}\n").policy_for("/lake/x", "x")
    ends_ms = 1_795_842_000_000
    assert policy.find_pause_end_ms("clean", ends_ms - 1) == ends_ms
    assert [policy.find_pause("clean", now_ms) for now_ms in (ends_ms - 1, ends_ms)] == ["ada", ""]


def test_end_of_a_pause_without_a_zone_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"paused_until.*a time with its zone, such as 2026-11-28T06:00:00Z"):
        merged('defaults:\n  clean: {paused: ada, paused_until: "2026-11-28 06:00"}\n')


def test_pauses_of_a_table_and_of_its_services_come_and_go_apart() -> None:
    path = "/lake/sales/orders"
    text = pause_in_overrides("", path, "orders", PAUSED)
    for service in ("clean", "compaction"):
        text = pause_in_overrides(text, path, "orders", Pause(True, service, "ada"))
    text = pause_in_overrides(text, path, "orders", Pause(is_paused=False))
    policy = merged(text).policy_for(path, "orders")
    assert [policy.find_pause(service, 0) for service in ("clean", "compaction", "clustering")] == ["ada", "ada", ""]
    for service in ("clean", "compaction"):
        text = pause_in_overrides(text, path, "orders", Pause(False, service))
    assert json.loads(text) == {"tables": []}


def test_pause_of_a_table_ends_by_itself_and_covers_that_of_a_service() -> None:
    path = "/lake/sales/orders"
    ends = "2026-11-28T06:00:00+00:00"
    ends_ms = int(datetime.fromisoformat(ends).timestamp() * 1000)
    text = pause_in_overrides("", path, "orders", Pause(True, "clean", "bob"))
    text = pause_in_overrides(text, path, "orders", replace(PAUSED, until=ends))
    policy = merged(text).policy_for(path, "orders")
    shown = [
        [(policy.find_pause(one, now_ms), policy.find_pause_end_ms(one, now_ms)) for one in ("clean", "archive")]
        for now_ms in (ends_ms - 1, ends_ms)
    ]
    assert shown == [[("ada", ends_ms), ("ada", ends_ms)], [("bob", None), ("", None)]]


@pytest.mark.parametrize(
    ("variable", "is_paused", "said"),
    [
        pytest.param("# why\ntables: []\n", True, "comments", id="comments-would-be-lost"),
        pytest.param('{"tables": [{"name": "x", "pool": "***"}]}', True, "masks", id="masked-by-airflow"),
        pytest.param('{"tables": [{"name": "x", "pol": "y"}]}', True, "unknown setting", id="already-wrong"),
        pytest.param(
            "tables:\n- {name: x, maintenance_window: {begin: 22:30, end: 23:30}}\n",
            True,
            "a time such as 22:30, in quotes",
            id="hours-without-quotes",
        ),
        pytest.param("", False, "no entry of the Variable", id="not-paused"),
        pytest.param('{"tables": [{"base_path": "/lake/*", "paused": "ada"}]}', False, "no entry", id="by-a-pattern"),
    ],
)
def test_a_variable_that_cannot_be_written_back_stays_as_it_is(variable: str, is_paused: bool, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pause_in_overrides(variable, "/lake/sales/orders", "orders", Pause(is_paused, by="ada"))


@pytest.mark.parametrize("folder", ["*", "?", "[a-z]*", "a[1]"])
def test_pause_of_a_table_whose_folder_is_called_like_a_pattern_pauses_no_other(folder: str) -> None:
    named, others = f"/lake/sales/{folder}", ("/lake/sales/orders", "/lake/sales/a1", "/lake/sales/x")
    before = "tables: [{base_path: '/lake/sales/*', weight: 3}]"
    paused = pause_in_overrides(before, named, "t", PAUSED)
    config = merged(paused)
    assert config.policy_for(named, "t").is_paused_at(0)
    assert not any(config.policy_for(other, "t").is_paused_at(0) for other in others)
    ended = pause_in_overrides(paused, named, "t", Pause(is_paused=False))
    assert load_values(ended) == load_values(before)
