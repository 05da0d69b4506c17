"""Options that are yes or no, in the words that a tables file may have them."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from airflow_lake_provider.config.tables_source import parse_tables
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.replication.sink import SinkSettings, create_sink
from airflow_lake_provider.sink_options.kafka import KafkaOptions, take_kafka
from airflow_lake_provider.sink_options.options import TakenOptions

BROKER = {"bootstrap_servers": "b:9092", "topic": "t"}


def kafka(**options: str) -> KafkaOptions:
    return take_kafka(TakenOptions({**BROKER, **options}, "the kafka sink of t"), "changes")


@pytest.mark.parametrize(
    ("text", "is_on"), [("true", True), ("yes", True), ("on", True), ("True", True), ("no", False), ("off", False)]
)
def test_words_of_yaml(text: str, is_on: bool) -> None:
    found = kafka(control_records=text, create_topics=text)
    assert (found.control_records, found.create_topics) == (is_on, is_on)


def test_other_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="control_records is 'ja', allowed: true, false"):
        kafka(control_records="ja")


def test_storage_option_that_says_no_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}
    before = fsspec.core.url_to_fs

    def url_to_fs(path: str, **options: object) -> object:
        seen.update(options)
        return before(path)

    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    options = {"path": str(tmp_path), "storage.anon": "false", "storage.key": "abc"}
    create_sink("file", SinkSettings("t.file", "t", options=options))
    assert (seen["anon"], seen["key"]) == (False, "abc")


def test_login_in_the_registrys_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="login in its address") as refused:
        kafka(format="avro", schema_registry="https://user:S3cr3t@reg:8081")
    assert "S3cr3t" not in str(refused.value)


def test_protobuf_comes_from_the_tables_file() -> None:
    entry = "{sink: kafka, topic: x, conn_id: k, format: protobuf, schema_registry: https://reg}"
    parse_tables(f"tables:\n  - base_path: /lake/a\n    replication:\n      - {entry}\n", "t.yaml")
