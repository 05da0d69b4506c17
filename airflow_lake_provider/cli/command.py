"""What the commands share: rows in each format of `--output`, errors in one line, numbers and times for people.

It imports neither Airflow nor a database: the console script `lake` starts with it in a tenth of a second.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import LakeError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping, Sequence


def run_command(args: Namespace, command: Callable[[Namespace], None]) -> None:
    """Run a command; an error of the provider ends it with its name and its sentence."""
    try:
        command(args)
    except LakeError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error


def warn(text: str) -> None:
    """Print a line on the error output: programs read the output itself."""
    print(text, file=sys.stderr)


# --- Rows


def print_rows(args: Namespace, rows: Sequence[dict[str, Any]], to_text: Callable[[dict[str, Any]], str]) -> None:
    """Print rows in the format of `--output`; `to_text` prints one row for people."""
    if args.output != "text":
        print_document(args, rows, rows)
        return
    for row in rows:
        print(to_text(row))


def print_columns(args: Namespace, rows: Sequence[dict[str, Any]], shown: Sequence[dict[str, Any]]) -> None:
    """Print rows in the format of `--output`; people get the shorter `shown`, in columns with a heading."""
    if args.output != "text":
        print_document(args, rows, rows)
        return
    for line in columns(shown, gap="  ", ruler=""):
        print(line)


def print_document(args: Namespace, document: object, rows: Sequence[dict[str, Any]]) -> None:
    """Print a document as JSON or YAML, or its rows in columns (`table`, `plain`)."""
    if args.output == "json":
        print(json.dumps(document, indent=2, default=str))
    elif args.output == "yaml":
        import yaml

        print(yaml.safe_dump(json.loads(json.dumps(document, default=str)), sort_keys=False, allow_unicode=True))
    else:
        # As Airflow's own commands print these formats.
        gap, ruler = (" | ", "=+=") if args.output == "table" else ("  ", "")
        for line in columns(rows, gap, ruler):
            print(line)


def columns(rows: Sequence[Mapping[str, Any]], gap: str, ruler: str) -> list[str]:
    """Return rows as lines of aligned columns, with the names first; numbers stand at the right."""
    if not rows:
        return []
    names = list(rows[0])
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[number]) for line in cells)) for number, name in enumerate(names)]
    is_number = [all(isinstance(row.get(name), (int, float)) for row in rows) for name in names]
    lines = [gap.join(name.ljust(width) for name, width in zip(names, widths, strict=True)).rstrip()]
    if ruler:
        lines.append(ruler.join("=" * width for width in widths))
    for line in cells:
        aligned = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, is_number, strict=True)
        )
        lines.append(gap.join(aligned).rstrip())
    return lines


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    # One row is one line, whatever a writer put into a name.
    return "" if value is None else " ".join(str(value).split("\n"))


# --- Numbers and times


def moment(time_ms: int | None) -> str:
    """Return a time in the zone of the person at the terminal, with the zone; `-` for none."""
    return "-" if time_ms is None else _local(time_ms).strftime("%Y-%m-%d %H:%M:%S %Z")


def with_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its times in ISO 8601 with their zone: `until_ms` becomes `until`."""
    return {
        key.removesuffix("_ms"): _iso(value) if key.endswith("_ms") else value for key, value in row.items()
    }  # fmt: skip


def _iso(time_ms: int | None) -> str | None:
    return None if time_ms is None else _local(time_ms).isoformat(timespec="seconds")


def _local(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000).astimezone()


def ago(time_ms: int | None, now_ms: int) -> str:
    """Return how far a time is from now: `12 s ago`, `in 3 h 5 m`; `-` for none."""
    if time_ms is None:
        return "-"
    if abs(time_ms - now_ms) < 1000:
        return "now"
    span = duration(abs(now_ms - time_ms) / 1000)
    return f"in {span}" if time_ms > now_ms else f"{span} ago"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: `23 h 54 m`, `1 m 5 s`, `12 s`, `0.4 s`."""
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    rest, parts = round(seconds), []
    for unit, length_s in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, length_s)
        parts.append((count, unit))
    first = next((number for number, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count) or "0 s"


def size(count: int | None) -> str:
    """Return bytes in the largest unit that keeps them above one: `1.7 MiB`; `-` for unknown."""
    if count is None:
        return "-"
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
