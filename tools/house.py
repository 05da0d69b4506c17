"""Check the structure that docs/architecture.md describes: no import loop, one list of layers, each name once.

python -m tools.house    # exit code 1 when the package or the Spark jobs break it (make check); warns of long files
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tools.links import ROOT

PACKAGE = "airflow_lake_provider"
FOLDERS = (PACKAGE, "spark_jobs")
_SETTING = re.compile(r"hoodie\.[\w.]*\w")
_SHARED = re.compile(
    rf"{PACKAGE}/(?:(?:errors|instant_clock|job_contract|obstacles|table_layout|timeline_head)\.py"
    r"|(?:replication|shared|sink_options)/)"
)
"""What travels to the driver (`execution/engines/packaging.py`)."""
LONG_FILE_LINES = 500
"""Lines of a file above which the check warns: it may be two stories."""


def list_files(root: Path, folder: str) -> list[Path]:
    """Return the modules of a folder, without copies that a build made."""
    return sorted(path for path in (root / folder).rglob("*.py") if "_shipped" not in path.parts)


def find_loop(root: Path, folder: str) -> str | None:
    """Return a chain of modules that import each other in a circle, in words.

    Imports inside functions count, and those for type checkers alone.
    """
    # The Spark jobs' folder is on the path of their imports; the package is imported by its name.
    parent = root if folder == PACKAGE else root / folder
    modules = {_name_of(path, parent): path for path in list_files(root, folder)}
    graph = {name: _imports_of(path, set(modules)) - {name} for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " imports ".join(reversed(error.args[1]))
    return None


def find_long_files(root: Path) -> Iterator[str]:
    """Yield a warning for each file that may be two stories."""
    for path in (path for folder in FOLDERS for path in list_files(root, folder)):
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > LONG_FILE_LINES:
            yield f"{path.relative_to(root)} has {lines} lines: is it two stories?"


def count_packed_assignments(source: str) -> int:
    """Return the number of statements that assign values to as many targets, and exchange none (`a, b = 1, f()`)."""
    return sum(isinstance(node, ast.Assign) and _is_packed(node) for node in ast.walk(ast.parse(source)))


def _is_packed(node: ast.Assign) -> bool:
    (target, *others), value = node.targets, node.value
    if others or not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return False
    parts = (*target.elts, *value.elts)
    if len(target.elts) != len(value.elts) or any(isinstance(part, ast.Starred) for part in parts):
        return False
    used = {ast.unparse(inner) for inner in ast.walk(value) if isinstance(inner, ast.Name | ast.Attribute)}
    return used.isdisjoint(ast.unparse(name) for name in target.elts)


def find_repeated_classes(root: Path) -> Iterator[str]:
    """Yield each public class whose name another one has, on either side of the Spark border: one name, one meaning."""
    places: dict[str, list[str]] = {}
    for path in (path for folder in FOLDERS for path in list_files(root, folder)):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(root)))
    for name, files in places.items():
        if len(files) > 1:
            yield f"{name} is a class of {' and of '.join(files)}: name each for what it is"


def find_repeated_settings(root: Path) -> Iterator[str]:
    """Yield each name of a setting of Hudi's that both sides of Spark spell, or that a shared module and another do."""
    places: dict[str, dict[str, list[str]]] = {}
    for folder in FOLDERS:
        for path in list_files(root, folder):
            shown = path.relative_to(root).as_posix()
            side = "shared" if _SHARED.match(shown) else folder
            for name in list_settings(path.read_text(encoding="utf-8")):
                places.setdefault(name, {}).setdefault(side, []).append(shown)
    for name, sides in sorted(places.items()):
        if len(sides) > 1:
            files = [file for shown in sides.values() for file in shown]
            yield f"{name} is spelled in {' and in '.join(files)}: import it from {PACKAGE}/shared/hudi_settings.py"


def list_settings(source: str) -> set[str]:
    """Return the names of Hudi's settings that are whole strings of a module."""
    strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {text for text in strings if isinstance(text, str) and _SETTING.fullmatch(text)}


def list_layers(root: Path) -> list[set[str]]:
    """Return the layers that import-linter checks, from the bottom to the top."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract.get("containers") == [PACKAGE])
    return [set(layer.split(" | ")) for layer in reversed(layers)]


def list_documented_layers(root: Path) -> list[set[str]]:
    """Return the layers of docs/architecture.md, from the bottom to the top."""
    text = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| (.*?) \|", text, re.M)
    return [{name.removesuffix("/").removesuffix(".py") for name in re.findall(r"`(.*?)`", row)} for row in rows]


def find_unlayered(root: Path) -> set[str]:
    """Return the folders and modules of the package that no layer names, so that import-linter would not check them."""
    children = (root / PACKAGE).iterdir()
    found = {path.stem for path in children if path.suffix == ".py" or (path / "__init__.py").is_file()}
    return found - set().union(*list_layers(root)) - {"__init__"}


def _name_of(path: Path, folder: Path) -> str:
    return ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")


def _imports_of(path: Path, known: set[str]) -> set[str]:
    """Return what a module imports of `known`, also for type checkers alone."""
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (full & known) or ({node.module} & known)
    return found


def find_imported_tests(root: Path) -> Iterator[str]:
    """Yield the modules that import a module of tests: what tests share is in tests/support/."""
    for path in list_files(root, "tests"):
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tests":
                named = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                for module in sorted(named - {name}):
                    if module.rpartition(".")[2].startswith("test_"):
                        yield f"{path.relative_to(root)} imports {module}: move what both need to tests/support/"


def find_problems(root: Path) -> Iterator[str]:
    """Yield every sentence about what breaks the structure."""
    for folder in FOLDERS:
        loop = find_loop(root, folder)
        if loop is not None:
            yield f"import loop: {loop}"
    paths = [path for folder in FOLDERS for path in list_files(root, folder)]
    packed = sum(count_packed_assignments(path.read_text(encoding="utf-8")) for path in paths)
    if packed:
        yield f"{packed} statements assign unrelated values in one line: write one a line"
    yield from find_repeated_classes(root)
    yield from find_repeated_settings(root)
    yield from find_imported_tests(root)
    yield from (f"{PACKAGE}/{name} is in no layer of pyproject.toml" for name in sorted(find_unlayered(root)))
    if list_layers(root) != list_documented_layers(root):
        yield "docs/architecture.md has other layers than pyproject.toml"


def main() -> int:
    """Print each problem and each warning; only problems fail."""
    found = list(find_problems(ROOT))
    for sentence in (*(f"warning: {warning}" for warning in find_long_files(ROOT)), *found):
        print(sentence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
