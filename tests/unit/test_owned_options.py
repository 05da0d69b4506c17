"""What a service sets itself, it owns: no such setting may be taken from `hudi_options` and then be replaced."""

from __future__ import annotations

import pytest

from airflow_lake_provider.config.owned_options import OWNED_OPTIONS, find_owned_option
from airflow_lake_provider.config.service_policies import ArchivePolicy, CleanPolicy, TtlPolicy
from airflow_lake_provider.config.tables_file import build_config, parse_tables
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.planner.periodic import ttl_options
from airflow_lake_provider.planner.retention import archive_options, clean_options


def test_what_the_planner_sends_along_is_owned() -> None:
    sent = {**clean_options(CleanPolicy()), **archive_options(ArchivePolicy()), **ttl_options(TtlPolicy())}
    assert {key for key in sent if key.startswith("hoodie.")} <= OWNED_OPTIONS.keys()


def test_an_owned_option_is_named_with_what_to_use_instead() -> None:
    said = find_owned_option({"hoodie.a": "1", "hoodie.keep.min.commits": "500"})
    assert said == "hoodie.keep.min.commits is set by the provider's services: use archive.min_commits"
    assert find_owned_option({"hoodie.write.lock.provider": "P"}) is None


def test_overrides_are_refused_like_the_file() -> None:
    text = '{"tables": [{"name": "orders", "hudi_options": {"hoodie.clean.hours.retained": 168}}]}'
    with pytest.raises(
        ConfigError, match=r"Variable lake_tables:1: hudi_options: hoodie\.clean\.hours\.retained is set"
    ):
        build_config(parse_tables("", "t.yaml"), parse_tables(text, "Variable lake_tables"))
