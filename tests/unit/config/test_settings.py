from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.config.tables_file import load_tables_file, parse_tables_file
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.errors import ConfigError

GOOD = """
defaults:
  compaction: {delta_commits: 4, log_to_base_ratio: null}
  hudi_options: {hoodie.write.lock.provider: P, hoodie.a: 1}
tables:
  - base_path: /lake/sales/*
    compaction: {delta_commits: 10}
    hudi_options: {hoodie.a: '2'}
  - name: clicks_*
    compaction: {enabled: false}
  - base_path: '/lake/[odd] name'
    heartbeat_timeout_s: 60
"""


def test_settings_from_empty_options_are_the_defaults() -> None:
    assert LakeSettings.from_options({"callback_tokens": "", "unknown_option": "x"}) == LakeSettings()


def test_settings_from_options_parse_lists_numbers_and_flags() -> None:
    settings = LakeSettings.from_options(
        {
            "callback_tokens": "first-token, second-token",
            "allowed_roots": "/lake,\ns3://bucket/lake",
            "max_notice_bytes": "1000",
            "loop_enabled": "False",
            "claim_lease_s": "2.5",
        }
    )
    assert settings.callback_tokens == ("first-token", "second-token")
    assert settings.allowed_roots == ("/lake", "s3://bucket/lake")
    assert (settings.max_notice_bytes, settings.loop_enabled, settings.claim_lease_s) == (1000, False, 2.5)


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        pytest.param("max_notice_bytes", "many", "max_notice_bytes = 'many'", id="no-number"),
        pytest.param("claim_lease_s", "-1", "above 0", id="negative"),
        pytest.param("claim_lease_s", "nan", "above 0", id="nan"),
        pytest.param("loop_enabled", "perhaps", "allowed: true, false", id="flag"),
        pytest.param("callback_tokens", "short", "fewer than 8", id="short-token"),
        pytest.param(
            "callback_tokens", "hudi_write_commit_http_callback", "public default key", id="hudis-default-key"
        ),
        pytest.param("allowed_roots", "/lake/../etc", "'..'", id="root-with-dots"),
    ],
)
def test_settings_that_are_wrong_or_unsafe_are_refused_by_name(option: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=option) as caught:
        LakeSettings.from_options({option: text})
    assert words in str(caught.value)


def test_tables_file_entries_inherit_from_defaults_and_the_first_match_wins() -> None:
    tables = parse_tables_file(GOOD, "t.yaml")
    sales = tables.policy_for("/lake/sales/orders", "orders")
    assert (sales.compaction.delta_commits, sales.compaction.log_to_base_ratio) == (10, None)
    assert sales.hudi_options == {"hoodie.write.lock.provider": "P", "hoodie.a": "2"}
    assert not tables.policy_for("/elsewhere", "clicks_raw").compaction.enabled
    assert tables.policy_for("/lake/[odd] name", "x").heartbeat_timeout_s == 60
    assert tables.policy_for("/elsewhere", "x") == tables.defaults


def test_tables_file_entries_that_name_one_table_are_distinguished_from_patterns() -> None:
    tables = parse_tables_file("tables: [{base_path: /lake/a/}, {base_path: /lake/*}]", "t.yaml")
    assert [(entry.base_path, entry.names_one_table) for entry in tables.entries] == [
        ("/lake/a", True),
        ("/lake/*", False),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("tables: 1", "t.yaml:1: tables must be a list", id="tables"),
        pytest.param("defaults:\n  compactoin: {}", "t.yaml:2: unknown setting 'compactoin'", id="typo"),
        pytest.param(
            "defaults:\n  compactoin: {}",
            "hudi_options, engine, spark_conn_id",
            id="typo-allowed-values",
        ),
        pytest.param(
            "defaults:\n  compaction:\n    delta_commits: 0", "t.yaml:3: compaction.delta_commits is '0'", id="zero"
        ),
        pytest.param("defaults:\n  compactoin: {}", "Did you mean 'compaction'?", id="typo-closest-name"),
        pytest.param(
            "tables:\n  - name: x\n    clean:\n      enabled: true\n      retained_comits: 3",
            "t.yaml:5: unknown setting 'retained_comits' in clean, allowed: paused, paused_until, enabled, commits, "
            "max_age_s, combine, policy, retained_commits, retained_hours, retained_versions. "
            "Did you mean 'retained_commits'?",
            id="typo-in-a-section",
        ),
        pytest.param(
            "defaults:\n  pool: 5\n  retries: -1", "t.yaml:2: pool is '5', allowed: a name", id="the-first-of-two"
        ),
        pytest.param(
            "limits:\n  pools: {heavy: 0}", "t.yaml:2: limits.pools.heavy is '0', allowed: a whole number", id="limit"
        ),
        pytest.param(
            "tables:\n  - name: x\n    replication:\n      - {sink: noop}\n      - {sink: kafka, ttl_s: soon}",
            "t.yaml:5: replication[1].ttl_s is 'soon', allowed: seconds above 0",
            id="in-a-list",
        ),
        pytest.param("defaults:\n  ttl: {column: seen}", "go together: ttl.column_days is not set", id="no-days"),
        pytest.param("defaults:\n  ttl: {column_days: 9}", "go together: ttl.column is not set", id="no-column"),
        pytest.param(
            "defaults:\n  ttl: {column: seen, column_days: 9, retained_days: 9}",
            "keep one of the two",
            id="both",
        ),
        pytest.param("defaults:\n  ttl: {column: a.b, column_days: 9}", "a column of the table", id="nested-column"),
        pytest.param("defaults:\n  compaction:\n    delta_commits: '5'", "a whole number from 1", id="text"),
        pytest.param("defaults:\n  compaction:\n    delta_commits: true", "a whole number from 1", id="boolean"),
        pytest.param(
            "defaults:\n  compaction: {log_to_base_ratio: [1]}", "log_to_base_ratio is 'a structure'", id="list"
        ),
        pytest.param("defaults:\n  clustering: {commits: 0}", "from 1, or null for off", id="clustering-zero"),
        pytest.param("defaults:\n  archive: {min_commits: null}", "min_commits is 'null'", id="not-off-by-null"),
        pytest.param(
            "defaults:\n  clean: {retained_commits: 25}",
            "t.yaml:2: archive.min_commits (20) must be greater than clean.retained_commits (25)",
            id="clean-against-archive",
        ),
        pytest.param("defaults:\n  hudi_options: {spark.x: 1}", "no Hudi setting", id="not-hudi"),
        pytest.param(
            "defaults:\n  hudi_options:\n    hoodie.a: 1\n    hoodie.clean.policy: KEEP_LATEST_BY_HOURS",
            "hoodie.clean.policy is set by the provider's services: use clean.policy: commits, hours or versions",
            id="retention-in-hudi-options",
        ),
        pytest.param(
            "tables:\n  - name: x\n    hudi_options: {hoodie.cleaner.commits.retained: 500}",
            "t.yaml:3: hudi_options: hoodie.cleaner.commits.retained is set by the provider's services",
            id="older-spelling",
        ),
        pytest.param(
            "defaults:\n  hudi_options: {hoodie.keep.max.commits: '5'}",
            "use archive.max_commits",
            id="archive-retention",
        ),
        pytest.param(
            "defaults:\n  hudi_options: {hoodie.table.services.enabled: 'false'}",
            "every service sets it itself; remove it",
            id="every-service-sets-it",
        ),
        pytest.param(
            "tables:\n  - compaction: {}", "t.yaml:2: a table needs base_path, name or discover", id="no-table"
        ),
        pytest.param(
            "tables:\n  - base_path: /a/../b",
            "t.yaml:2: base_path is '/a/../b', allowed: a path or pattern without '..'",
            id="dots",
        ),
        pytest.param("defaults: {}\ndefaults: {}", "'defaults' stands twice", id="twice"),
        pytest.param("a: [", "not YAML", id="not-yaml"),
        pytest.param("- x", "the file must be a mapping", id="list-file"),
    ],
)
def test_tables_file_mistakes_name_file_line_and_allowed_values(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_tables_file(text, "t.yaml")
    assert words in str(caught.value)


def test_tables_file_of_no_path_or_no_content_gives_the_defaults() -> None:
    assert load_tables_file("") == parse_tables_file("", "t.yaml") == TablesConfig()


def test_tables_source_follows_the_file_and_keeps_the_last_good_one(tmp_path: Path) -> None:
    path = tmp_path / "tables.yaml"
    source = TablesSource(str(path))
    with pytest.raises(ConfigError, match=r"tables\.yaml"):
        source.load()
    path.write_text("defaults: {compaction: {delta_commits: 7}}", encoding="utf-8")
    assert source.load().defaults.compaction.delta_commits == 7
    path.write_text("defaults: {compaction: {delta_commits: none at all}}", encoding="utf-8")
    assert source.load().defaults.compaction.delta_commits == 7
    assert "delta_commits is 'none at all'" in source.problem
    path.unlink()
    assert source.load().defaults.compaction.delta_commits == 7
    path.write_text("defaults: {compaction: {delta_commits: 8}}", encoding="utf-8")
    assert source.load().defaults.compaction.delta_commits == 8
    assert source.problem == ""
