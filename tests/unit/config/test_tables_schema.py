"""The published schema and the parser say the same of any file, good or bad."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import Field, ValidationError

from airflow_lake_provider.config.kinds import From1, describe
from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import DAYS, CleanPolicy
from airflow_lake_provider.config.tables_config import TablesFile
from airflow_lake_provider.config.tables_file import SCHEMA_FILE, parse_tables_file, schema_text, tables_schema
from airflow_lake_provider.errors import ConfigError

EXAMPLES = int(os.environ.get("LAKE_SCHEMA_EXAMPLES", "500"))
VALIDATOR = Draft202012Validator(tables_schema())

# What a schema cannot say, by the words in which the parser says it.
ONLY_THE_PARSER_KNOWS = (
    "two sinks are named",
    "must be greater than",
    "is one more than",
    "clean.policy: ",
    "must not be less than",
    "ttl.column",
    "a name such as Europe/Berlin",
)

GOOD_TEXTS = {
    "base_path": ["/lake/a", "/lake/*", "s3a://bucket/x", "/lake/[odd] name"],
    "name": ["orders", "clicks_*", "2026", ""],
    "discover": ["/lake", "s3a://bucket/lake"],
    "paused_until": ["2030-01-01T06:00:00Z", "2030-01-01T06:00:00+02:00"],
    "discover_metastore": ["thrift://hive:9083"],
    "metastore": ["thrift://hive:9083", "thrift://a.b:1,thrift://c:2"],
    "begin": ["22:00", "06:30"],
    "end": ["23:59", "00:00"],
    "time_zone": ["UTC", "Europe/Berlin"],
}
BAD_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2.5, 5.0, "", "x", "5", "..", "/a/../b", "/a/*", "24:00", [], ["x"], {}, {"x": 1},
    {"hoodie.x": None}, {"spark.x": [1]}, {"hoodie.clean.policy": "x"}, [1],
    "mon", ["mon", 3],
]  # fmt: skip


def resolve(shape: dict[str, Any]) -> dict[str, Any]:
    """Return what a reference of the schema stands for."""
    return VALIDATOR.schema["$defs"][shape["$ref"].rsplit("/", 1)[-1]] if "$ref" in shape else shape


def make(shape: dict[str, Any], rng: random.Random, key: str = "") -> Any:
    """Make a value that the schema allows."""
    shape = resolve(shape)
    if "anyOf" in shape and "type" not in shape:
        return make(rng.choice(shape["anyOf"]), rng, key)
    kind = shape.get("type")
    if kind == ["object", "null"]:
        kind = "object"
    if kind == "object":
        return make_object(shape, rng)
    if kind == "array":
        items = [make(shape["items"], rng) for _ in range(rng.randrange(1, 3))]
        return [item for item in items if item != {}]
    if "enum" in shape:
        return rng.choice(shape["enum"])
    if kind == "string":
        return rng.choice(GOOD_TEXTS.get(key, ["a_name", "spark"]))
    values: dict[Any, Any] = {
        "integer": shape.get("minimum", 0) + rng.randrange(40),
        "number": rng.choice([0.25, 1, 50_000.5]),
        "boolean": rng.random() < 0.5,
        "null": None,
    }
    return values[kind]


def make_object(shape: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    if "patternProperties" in shape:
        prefix = next(iter(shape["patternProperties"])).strip("^").replace("\\", "")
        return {f"{prefix}a": rng.choice(["t", 3, True, 1.5])} if rng.random() < 0.8 else {}
    if isinstance(shape.get("additionalProperties"), dict) and "properties" not in shape:
        return {"heavy": make(shape["additionalProperties"], rng)}
    known = shape["properties"]
    made = {key: make(known[key], rng, key) for key in known if rng.random() < 0.35}
    made |= {key: make(known[key], rng, key) for key in shape.get("required", ())}
    if "base_path" in known:  # an entry
        made.pop("discover" if rng.random() < 0.7 else "base_path", None)
        if "discover" not in made:
            made.pop("discover_depth", None)
            made.pop("discover_metastore", None)
            made.setdefault("base_path", "/lake/t")
        if "discover_metastore" not in made:
            made.pop("discover_databases", None)
    return made


def spoil(value: Any, rng: random.Random) -> Any:
    """Change one place anywhere inside; the outcome may still be good."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        return {**value, key: spoil(value[key], rng)}
    if isinstance(value, dict) and rng.random() < 0.5:
        return {**value, rng.choice(["compaction", "unknown", "base_path", "limits", "pools"]): rng.choice(BAD_VALUES)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        index = rng.randrange(len(value))
        return [*value[:index], spoil(value[index], rng), *value[index + 1 :]]
    return rng.choice(BAD_VALUES)


def parser_says(document: Any, text: str) -> str:
    try:
        parse_tables_file(text, "t.yaml")
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump], ids=["json", "yaml"])
def test_schema_and_parser_agree_on_generated_files(write: Any) -> None:
    rng = random.Random(20261121)
    counts = {"good": 0, "bad": 0, "parser only": 0}
    for _ in range(EXAMPLES):
        document = make(VALIDATOR.schema, rng)
        for _ in range(rng.randrange(3)):
            document = spoil(document, rng)
        problems = [error.message for error in VALIDATOR.iter_errors(document)]
        said = parser_says(document, write(document))
        if any(words in said for words in ONLY_THE_PARSER_KNOWS):
            counts["parser only"] += 1
            continue
        assert bool(problems) == bool(said), f"{document}: the schema says {problems}, the parser {said!r}"
        counts["bad" if said else "good"] += 1
    assert min(counts.values()) > EXAMPLES / 50, counts


def test_shipped_schema_is_the_one_that_the_declarations_give() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), (
        "write it again with `airflow lake tables-file --schema`"
    )


def test_schema_describes_each_setting_with_its_default() -> None:
    policy = resolve(tables_schema()["properties"]["defaults"])["properties"]
    assert resolve(policy["compaction"])["properties"]["delta_commits"] == {
        "description": "Completed delta commits since the last compaction.",
        "default": 5,
        "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}],
    }
    window = resolve(policy["maintenance_window"]["anyOf"][0])
    assert window["properties"]["days"]["items"]["enum"] == list(DAYS)


def test_a_new_setting_needs_one_edit() -> None:
    class Frost(CleanPolicy):
        depth_m: From1 = 3
        """How deep the table is frozen."""

    class Policy(TablePolicy):
        clean: Frost = Frost()

    class File(TablesFile):
        defaults: Policy = Field(default_factory=Policy)

    described = Policy.model_json_schema()["$defs"]["Frost"]["properties"]["depth_m"]
    assert (described["default"], described["description"]) == (3, "How deep the table is frozen.")
    assert (described["type"], described["minimum"]) == ("integer", 1)
    good = File.model_validate({"defaults": {"clean": {"depth_m": 5}}})
    merged = good.defaults.over(Policy(clean=Frost(commits=9)))
    assert (merged.clean.depth_m, merged.clean.commits) == (5, 9)
    with pytest.raises(ValidationError) as caught:
        File.model_validate({"defaults": {"clean": {"depth_m": 0}}})
    said = describe(File, caught.value.errors()[0], lambda place: "0")
    assert said == "clean.depth_m is '0', allowed: a whole number from 1"
