"""The generated reference holds everything that the code offers, and a page that is not current is found."""

from __future__ import annotations

import re
import sys

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.errors import LakeError
from tools import reference
from tools.json_schema import describe_kind, find_object, list_properties

SCHEMA = {
    "$defs": {"Mode": {"enum": ["any", "all"]}, "Rule": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    "required": ["mode"],
    "properties": {
        "mode": {"$ref": "#/$defs/Mode", "description": "How\nrules | combine"},
        "most": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}], "default": None},
        "rules": {"type": "array", "items": {"$ref": "#/$defs/Rule"}},
        "check": {"type": "string", "pattern": "^(?:cheap|full)$", "default": "cheap"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


def test_a_schema_is_described_in_words() -> None:
    found = {one.name: one for one in list_properties(SCHEMA, SCHEMA)}
    assert {name: one.kind for name, one in found.items()} == {
        "mode": "`any` or `all`",
        "most": "integer ≥ 1, ≤ 9 or null",
        "rules": "list of Rule",
        "check": "`cheap` or `full`",
        "labels": "mapping to string",
    }
    assert found["mode"].meaning == "How rules \\| combine"
    assert found["mode"].is_required
    assert (found["most"].default, found["check"].default, found["mode"].default) == ("`null`", "`cheap`", "")
    assert find_object(SCHEMA["properties"]["rules"], SCHEMA) == SCHEMA["$defs"]["Rule"]
    assert describe_kind({"$ref": "#/$defs/Rule"}, SCHEMA) == "Rule"


def test_each_command_that_airflow_parses_has_its_heading() -> None:
    from airflow.cli.cli_parser import get_parser

    (lake,) = (
        action.choices["lake"]
        for action in get_parser()._subparsers._actions
        if isinstance(action.choices, dict) and "lake" in action.choices
    )
    (commands,) = (action.choices for action in lake._actions if isinstance(action.choices, dict))
    # A group has no heading of its own, and each of its commands has one.
    headings = re.findall(r"^## airflow lake (\S+)(?: \S+)?$", reference.render_cli(), re.M)
    assert set(headings) == set(commands)


def test_each_route_that_an_app_serves_has_its_line_and_its_types() -> None:
    from airflow_lake_provider.manager.api.app import create_app
    from airflow_lake_provider.ui.app import create_pages

    page = reference.render_http()
    apps = {"/v1/hoodie": create_app(lambda: None), "/lake": create_pages(lambda: None, lambda: None)}  # type: ignore[arg-type, return-value]
    served = {f"{prefix}{path}" for prefix, app in apps.items() for path in app.openapi()["paths"]}
    assert set(re.findall(r"^\| `[A-Z]+ (/\S+)` \|", page, re.M)) == served
    (callback,) = re.findall(r"^\| `POST /v1/hoodie/callback` \| (.*)$", page, re.M)
    assert callback.startswith("callback | ")
    assert f"| `{LakeError.__name__}` |" in page
    assert "/callback" in reference.describe_apps()["manager"]["paths"]


def test_each_setting_of_a_table_is_named() -> None:
    page = reference.render_tables_file()
    assert [name for name in TablePolicy.model_fields if name not in page] == []
    assert page.count("\n| `paused` |") == 1
    assert "\n| `core_hours_per_day` |" in page


def test_arguments_of_several_commands_are_explained_once() -> None:
    page = reference.render_cli()
    assert page.count("\n| `--match` |") == 1
    assert page.count("`airflow lake` does the same") == 1


def test_a_page_that_was_changed_by_hand_is_not_current(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    monkeypatch.setattr(reference, "render_all", lambda: {tmp_path / "cli.md": "# Commands\n"})
    monkeypatch.setenv("AIRFLOW_HOME", "kept")
    monkeypatch.setattr(sys, "argv", ["reference"])
    assert reference.main() == 0
    monkeypatch.setattr(sys, "argv", ["reference", "--check"])
    assert reference.main() == 0
    (tmp_path / "cli.md").write_text("# Commands, by hand\n", encoding="utf-8")
    (tmp_path / "stray.md").write_text("# Gone\n", encoding="utf-8")
    assert reference.main() == 1
    said = capsys.readouterr().err
    assert "cli.md" in said
    assert "stray.md" in said
    assert "make reference" in said
