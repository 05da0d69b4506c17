"""`airflow` imports a command's module when it runs: a name that is wrong shows only then, or here."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.cli.cli_config import ActionCommand, GroupCommand
from rich.markup import escape

from airflow_lake_provider.cli import definition

SOURCE = Path(definition.__file__).read_text(encoding="utf-8")
FUNCTIONS = re.findall(r'lazy_load_command\("([\w.]+)"\)', SOURCE)


def _commands() -> Iterator[ActionCommand]:
    groups = list[GroupCommand](definition.get_cli_commands())
    for group in groups:
        for command in group.subcommands:
            if isinstance(command, ActionCommand):
                yield command
            else:
                groups.append(command)


def test_each_command_has_a_function() -> None:
    assert len(FUNCTIONS) == len(list(_commands()))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_of_a_command_exists(name: str) -> None:
    module, _, function = name.rpartition(".")
    assert callable(getattr(importlib.import_module(module), function))


def test_no_bracket_of_a_help_text_is_taken_for_a_style() -> None:
    """Rich, which prints the help of `airflow`, leaves `[lake]` out unless it is escaped."""
    texts = [
        text
        for command in _commands()
        for text in (command.help, command.epilog or "", *(str(arg.kwargs.get("help", "")) for arg in command.args))
    ]
    assert any("[lake]" in text for text in texts)
    assert [text for text in texts if text != escape(text.replace("\\[", "["))] == []


WITHOUT_ROWS = {"timeline-server", "dag-bundles"}
"""One serves, the other prints a section of airflow.cfg."""


def test_each_command_prints_rows_and_errors_for_programs() -> None:
    without = {one.name for one in _commands() if "--output" not in [flag for arg in one.args for flag in arg.flags]}
    assert without == WITHOUT_ROWS
