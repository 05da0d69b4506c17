"""One command of `airflow lake`, in this process."""

from __future__ import annotations

from typing import Any

import pytest


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    from airflow.cli.cli_parser import get_parser

    arguments = get_parser().parse_args(["lake", *words])
    code: Any = 0
    try:
        arguments.func(arguments)
    except SystemExit as ended:
        code = ended.code
    output = capsys.readouterr().out
    return (code, output) if isinstance(code, int) else (1, output + str(code))
