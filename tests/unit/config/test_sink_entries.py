"""Options of built-in sinks are refused where the tables file is read, with their line and the closest name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.errors import ConfigError

DOCS = (Path(__file__).parents[3] / "docs" / "replication-sinks.md").read_text(encoding="utf-8")
KAFKA = "sink: kafka, conn_id: k, topic: t"
BROKER = "sink: kafka, bootstrap_servers: 'b:9', topic: t"
AVRO = f"{KAFKA}, format: avro"
DATABASE = "sink: database, conn_id: w, table: t"


def parse(entry: str) -> None:
    lines = "".join(f"\n          {setting}" for setting in entry.split("; "))
    parse_tables_file(f"tables:\n  - base_path: /lake/x\n    replication:\n      - {{{lines}}}\n", "t.yaml")


@pytest.mark.parametrize(
    ("entry", "line", "said"),
    [
        pytest.param("sink: kafak, topic: t", 5, "there is no sink 'kafak'. Did you mean 'kafka'?", id="sink"),
        pytest.param("sink: kafka, conn_id: k", 4, "the kafka sink needs the setting 'topic'", id="topic is missing"),
        pytest.param("sink: kafka, topic: t", 4, "needs the setting 'bootstrap_servers'", id="broker is missing"),
        pytest.param(f"{KAFKA},; topik: t", 6, "knows no setting 'topik', .* Did you mean 'topic'?", id="misspelt"),
        pytest.param(f"{KAFKA},; ttls: 5", 6, "Did you mean 'ttl_s'?", id="field of the entry"),
        pytest.param(f"{KAFKA},; kafka.acks: 1", 6, "kafka.acks set: exactly-once delivery", id="lossy"),
        pytest.param(f"{KAFKA},; kafka.message.max.bytes: 2147483647", 6, "at most 1000000000", id="client's bytes"),
        pytest.param(f"{KAFKA},; control_records: ja", 6, "control_records is 'ja', allowed: true, false", id="flag"),
        pytest.param(f"{KAFKA},; timeout_s: soon", 6, "timeout_s is 'soon', allowed: seconds above 0", id="seconds"),
        pytest.param(f"{KAFKA},; partitions: 0", 6, "partitions is '0', allowed: a number of", id="count"),
        pytest.param(f"{KAFKA},; format: debezium, mode: latest", 6, "for mode: changes", id="debezium and latest"),
        pytest.param(f"{KAFKA},; format: protobuf", 6, "needs schema_registry", id="protobuf"),
        pytest.param(f"{BROKER},; kafka.security.protocol: SASL_SSL", 6, "client would take GSSAPI", id="no mechanism"),
        pytest.param(
            f"{BROKER},; kafka.sasl.mechanism: OAUTHBEARER", 6, "set kafka.sasl.oauthbearer.method: oidc", id="no token"
        ),
        pytest.param(f"{AVRO},; schema_registry_ca: /ca.pem", 6, "_ca, and no schema_registry", id="no registry"),
        pytest.param(
            f"{AVRO}, schema_registry: 'http://r',; schema_registry_ca: /ca.pem", 6, "is no https:// address", id="ca"
        ),
        pytest.param(
            f"{AVRO}, schema_registry_conn_id: r, schema_registry_user: u,; schema_registry_token: 'secret://variable/t'",
            6,
            "takes one login: leave one out",
            id="two logins",
        ),
        pytest.param(f"{KAFKA},; schema_registry_conn_id: r", 4, "schema_registry is for format", id="json by one"),
        pytest.param(f"{KAFKA},; decimal.handling.mode: double", 6, "knows no setting 'decimal.hand", id="no debezium"),
        pytest.param(f"{KAFKA},; on_record_error: dead_letter", 6, "dead_letter_topic together", id="no letters"),
        pytest.param("sink: hudi, path: /x,; start: now", 6, "start is 'now', and the hudi sink", id="hudi's start"),
        pytest.param("sink: hudi, path: /x,; heartbeat_s: 60", 6, "a commit of its table each time", id="hudi's beat"),
        pytest.param("sink: noop,; heartbeat_s: 60", 6, "keeps no position: leave heartbeat_s out", id="noop's beat"),
        pytest.param("sink: elsewhere,; heartbeat_s: often", 6, "allowed: seconds above 0", id="beat of one's own"),
        pytest.param(f"{KAFKA},; heartbeat_s: secret://variable/s", 6, "write the seconds", id="secret beat"),
        pytest.param(f"{KAFKA},; where: a = b", 6, "where: 'a = b', in which a value", id="where"),
        pytest.param(
            f"{KAFKA}, buckets: 4,; where: a = 1", 6, "and buckets is 4: leave buckets out", id="where and b."
        ),
        pytest.param(f"{KAFKA},; start: later", 6, "start is 'later', allowed: snapshot, now", id="start"),
        pytest.param(f"{KAFKA},; reader: fast", 6, "reader is 'fast', allowed: auto, cdc, slices", id="reader"),
        pytest.param(f"{KAFKA},; buckets: many", 6, "buckets is 'many', allowed: a number of buckets", id="buckets"),
        pytest.param(f"{KAFKA},; column.exclude: x", 6, "knows no setting column.exclude", id="columns"),
        pytest.param("sink: kafka, conn_id: k,; topic: a b/c", 6, "topic is 'a b/c', allowed: letters", id="name"),
        pytest.param("sink: kafka, conn_id: k,; topic: '{tabel}'", 6, "{tabel} is no name: allowed are", id="place"),
        pytest.param(
            f"{KAFKA},; checkpoint_topic: t", 5, "has one topic 't' as topic and checkpoint_topic", id="one topic"
        ),
        pytest.param(f"{DATABASE},; column: a", 6, "Did you mean 'columns'?", id="database"),
        pytest.param("sink: database, table: t", 4, "needs the setting 'url'", id="database without address"),
        pytest.param("sink: file,; pfad: /x", 4, "the file sink needs the setting 'path'", id="file"),
        pytest.param("sink: file, path: /x,; format: avro", 6, "format is 'avro', allowed: json, parquet", id="format"),
        pytest.param("sink: hudi,; path: 's3a://b/x'", 6, "on s3a:// needs hoodie.write.lock.provider", id="lock"),
        pytest.param("sink: hudi, path: /x,; hoodie.base.path: /y", 6, "must not be set", id="owned"),
    ],
)
def test_wrong_option_is_named_with_its_line(entry: str, line: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("{", r"\{").replace("?", r"\?")) as raised:
        parse(entry)
    assert str(raised.value).startswith(f"t.yaml:{line}: replication[0]: ")


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param("sink: noop, topic: t, whatever: 1", id="noop tries any entry"),
        pytest.param("sink: elsewhere, colour: red", id="sink of another package"),
        pytest.param("sink: file, conn_id: store", id="path of the connection"),
        pytest.param("sink: hudi, conn_id: store, path: 's3a://b/x'", id="lock of the connection"),
        pytest.param(
            f"{KAFKA}, format: avro, schema_registry: 'secret://variable/r', column.mask.hash.SHA-256: a, "
            "column.mask.hash.salt: 'secret://variable/s'",
            id="references",
        ),
        pytest.param(f"{KAFKA}, format: protobuf, schema_registry_conn_id: r", id="registry of a connection"),
        pytest.param(f"{KAFKA}, kafka.sasl.mechanism: OAUTHBEARER", id="method of the connection"),
        pytest.param(f"{BROKER}, kafka.sasl.mechanism: GSSAPI", id="client of the driver"),
        pytest.param(f"{KAFKA}, control_records: yes, create_topics: off", id="words of yaml"),
        pytest.param("sink: kafka, conn_id: k, topic: 'lake.{database}.{table}'", id="names of the table"),
    ],
)
def test_what_only_the_run_knows_is_left_to_it(entry: str) -> None:
    parse(entry)


def documented(section: str) -> list[str]:
    """Return the settings that a section of the page lists behind `Settings:`."""
    text = DOCS.split(f"\n{section}\n", 1)[1].split("\n#", 1)[0]
    listed = re.search(r"Settings:\s(.*?)\.\s(?:[A-Z]|\n)", text, re.DOTALL)
    assert listed is not None, section
    return re.findall(r"`([a-z_.]+)[^`]*`", listed[1])


VALUES = {
    "create_topics": "true", "on_record_error": "skip", "timeout_s": "5", "statement_timeout_s": "5", "partitions": "3",
    "replication_factor": "1", "create": "true", "evolve": "widen", "path": "/x", "url": "'sqlite:////x'",
}  # fmt: skip
NEEDED = {
    "kafka": {"topic": "t", "bootstrap_servers": "'b:9'"},
    "file": {"path": "/x"},
    "database": {"table": "t", "url": "'sqlite:////x'"},
    "hudi": {"path": "/x"},
}


@pytest.mark.parametrize(
    ("sink", "section"),
    [
        ("kafka", "## kafka"),
        ("file", "## file"),
        ("database", "## database"),
        ("hudi", "## A table of another lake"),
    ],
)
def test_each_documented_setting_is_one(sink: str, section: str) -> None:
    for name in documented(section):
        full = {"storage.": "storage.anon", "kafka.": "kafka.linger.ms", "hoodie.": "hoodie.x"}.get(name, name)
        options = NEEDED[sink] | {full: VALUES.get(full, "any")}
        parse(f"sink: {sink}, " + ", ".join(f"{key}: {text}" for key, text in options.items()))
