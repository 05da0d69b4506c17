"""The structure that README and docs describe: no import loop, few root modules, one list of layers, living links."""

from __future__ import annotations

import ast
import re
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from airflow_lake_provider.get_provider_info import get_provider_info
from tools.links import find_broken, list_pages
from tools.words import find_code_words, find_words, list_modules

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_lake_provider"
MOST_FILES = 190
MOST_ROOT_MODULES = 7


def name_of(path: Path, folder: Path) -> str:
    return ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path, known: set[str]) -> set[str]:
    """Return what a module imports of `known`, also inside functions; what only type checkers read is left out."""
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (full & known) or ({node.module} & known)
    return found


@pytest.mark.parametrize("folder", ["airflow_lake_provider", "spark_jobs"])
def test_no_module_imports_itself_by_way_of_others(folder: str) -> None:
    parent = ROOT if folder == "airflow_lake_provider" else ROOT / folder
    modules = {name_of(path, parent): path for path in (ROOT / folder).rglob("*.py")}
    graph = {name: imports_of(path, set(modules)) - {name} for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_package_is_a_small_number_of_concepts() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if "_shipped" not in path.parts]
    assert len(files) <= MOST_FILES
    assert len([path for path in files if path.parent == PACKAGE and path.name != "__init__.py"]) <= MOST_ROOT_MODULES


@pytest.mark.parametrize("kind", ["operators", "sensors", "triggers"])
def test_provider_names_every_module_of_operators_sensors_and_triggers_to_airflow(kind: str) -> None:
    (entry,) = get_provider_info()[kind]
    found = {f"airflow_lake_provider.{kind}.{path.stem}" for path in (PACKAGE / kind).glob("[!_]*.py")}
    assert set(entry["python-modules"]) == found


def test_layers_of_the_documentation_are_those_that_are_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| (.*?) \|", text, re.M)
    documented = [{name.removesuffix("/").removesuffix(".py") for name in re.findall(r"`(.*?)`", row)} for row in rows]
    assert documented == [set(layer.split(" | ")) for layer in reversed(layers)]
    assert len(layers) <= 14


def test_links_of_the_documentation_lead_somewhere() -> None:
    assert find_broken(ROOT) == []


def test_the_documentation_has_no_private_words() -> None:
    found = {page.name: find_words(page.read_text(encoding="utf-8")) for page in list_pages(ROOT)}
    assert {name: words for name, words in found.items() if words} == {}


def test_the_code_has_no_private_words() -> None:
    found = {path.name: find_code_words(path.read_text(encoding="utf-8")) for path in list_modules(ROOT)}
    assert {name: words for name, words in found.items() if words} == {}
