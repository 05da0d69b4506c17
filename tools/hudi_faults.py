"""Hudi's faults as data: `tools/hudi_faults.toml` has one entry for each that docs/limitations.md lists.

An entry says in which versions of Hudi the fault was seen, and names the tests that fail once stock Hudi shows it no
longer. `tools/next_hudi.py` runs them on another Hudi.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FAULTS = Path(__file__).with_name("hudi_faults.toml")
PAGE = "docs/limitations.md"
DEFAULT_SINCE = "1.2.0"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of Hudi: how its row begins, its versions, and the tests that see it."""

    row: str
    since: str = DEFAULT_SINCE
    """The oldest version tried that has it."""
    until: str | None = None
    """The first version that no longer has it."""
    probes: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    """Entries of the oracles: `oracle:` and the kind, `row_oracle:` and the beginning of the text."""
    why: str = ""
    """The reason for having no probe."""

    def is_expected_in(self, version: str) -> bool | None:
        """Whether a version has the fault; None where it is older than what was tried."""
        if _key(version) < _key(self.since):
            return None
        return self.until is None or _key(version) < _key(self.until)


def load_faults(path: Path = FAULTS) -> tuple[Fault, ...]:
    """Return the faults of a file."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    return tuple(
        Fault(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
        for entry in entries
    )


def find_wrong(faults: tuple[Fault, ...], root: Path) -> Iterator[str]:
    """Yield what is wrong with the faults: a row, a probe or an oracle's entry that exists on one side only."""
    rows = list_rows((root / PAGE).read_text(encoding="utf-8"))
    for row in rows:
        if sum(row.startswith(fault.row) for fault in faults) != 1:
            yield f"not one entry for the row {row[:80]!r}"
    known = list_known(root)
    named = [name for fault in faults for name in fault.known]
    yield from (f"no entry names {name}" for name in known if not any(name.startswith(each) for each in named))
    yield from (f"{each} is not in known.py" for each in named if not any(name.startswith(each) for name in known))
    for fault in faults:
        if not any(row.startswith(fault.row) for row in rows):
            yield f"{PAGE} has no row that begins with {fault.row!r}"
        if bool(fault.probes) == bool(fault.why):
            yield f"{fault.row!r} needs either probes or the reason for having none"
        yield from (f"there is no test {probe}" for probe in fault.probes if not _exists(root, probe))


def list_rows(page: str) -> list[str]:
    """Return the first cells of the tables of the part "Faults of Hudi"."""
    part = page.partition("## Faults of Hudi\n")[2].partition("\n## ")[0]
    rows = [line.removeprefix("| ") for line in part.splitlines() if line.startswith("| ")]
    return [row for row in rows if not row.startswith("fault | ")]


def list_known(root: Path) -> list[str]:
    """Return the names of the oracles' expected differences, without importing them: they need Spark."""
    judge = (root / "tests" / "oracle" / "judge.py").read_text(encoding="utf-8")
    constants: dict[str, str] = {}
    for node in ast.parse(judge).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            names = [ast.unparse(target) for target in node.targets[0].elts]
            constants |= dict(zip(names, ast.literal_eval(node.value), strict=True))
    kinds = [
        constants[kind.id] if isinstance(kind, ast.Name) else ast.literal_eval(kind)
        for kind in _arguments(root / "tests" / "oracle" / "known.py", "Known", 0)
    ]
    texts = [ast.literal_eval(text) for text in _arguments(root / "tests" / "row_oracle" / "known.py", "KnownRows", 1)]
    return [*(f"oracle:{kind}" for kind in kinds), *(f"row_oracle:{text}" for text in texts)]


def _arguments(path: Path, called: str, place: int) -> list[ast.expr]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == called]
    return [call.args[place] for call in calls]


def _exists(root: Path, probe: str) -> bool:
    file, _, name = probe.partition("::")
    path = root / file
    return path.is_file() and f"def {name.partition('[')[0]}(" in path.read_text(encoding="utf-8")


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
