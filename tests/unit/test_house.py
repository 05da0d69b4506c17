"""The structure that README and docs describe: no import loop, few root modules, one list of layers, living links."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_lake_provider.get_provider_info import get_provider_info
from tools.house import (
    LONG_FILE_LINES,
    count_packed_assignments,
    find_imported_tests,
    find_long_files,
    find_loop,
    find_problems,
    find_repeated_classes,
    find_repeated_settings,
    find_unlayered,
)
from tools.links import find_broken, list_pages
from tools.words import find_words

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_lake_provider"


def test_structure_is_that_of_the_documentation() -> None:
    assert list(find_problems(ROOT)) == []


@pytest.mark.parametrize("is_inside", [False, True])
def test_modules_that_import_each_other_are_found_also_where_a_function_imports(
    tmp_path: Path, is_inside: bool
) -> None:
    back = (
        "def use():\n    from airflow_lake_provider import one\n" if is_inside else "import airflow_lake_provider.one\n"
    )
    write(tmp_path, one="from airflow_lake_provider import two\n", two=back, three="")
    loop = find_loop(tmp_path, "airflow_lake_provider")
    assert loop is not None
    assert {"airflow_lake_provider.one", "airflow_lake_provider.two"} == set(loop.split(" imports "))


def test_import_for_type_checkers_alone_closes_a_loop(tmp_path: Path) -> None:
    back = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from airflow_lake_provider import one\n"
    write(tmp_path, one="from airflow_lake_provider import two\n", two=back)
    assert find_loop(tmp_path, "airflow_lake_provider") is not None


@pytest.mark.parametrize(
    ("package", "jobs", "is_repeated"),
    [
        ("names.py", "names.py", True),
        ("shared/names.py", "names.py", True),
        ("names.py", "others.py", False),
        ("shared/names.py", "others.py", False),
    ],
)
def test_setting_that_both_sides_of_spark_spell_is_found(
    package: str, jobs: str, is_repeated: bool, tmp_path: Path
) -> None:
    for path in (tmp_path / "airflow_lake_provider" / package, tmp_path / "spark_jobs" / jobs):
        path.parent.mkdir(parents=True, exist_ok=True)
        name = "hoodie.index.type" if path.name == "names.py" else "hoodie.base.path"
        path.write_text(f'SETTING = "{name}"\n', encoding="utf-8")
    assert len(list(find_repeated_settings(tmp_path))) == is_repeated


@pytest.mark.parametrize(
    ("source", "packed"),
    [
        pytest.param("a, b = 1, f()", 1, id="unrelated"),
        pytest.param("a, b = b, a", 0, id="exchange"),
        pytest.param("a, b = pair", 0, id="unpacked"),
        pytest.param("a, *b = 1, 2", 0, id="starred"),
    ],
)
def test_assignments_of_unrelated_values_are_counted(source: str, packed: int) -> None:
    assert count_packed_assignments(source) == packed


def test_long_file_is_named_in_a_warning(tmp_path: Path) -> None:
    write(tmp_path, long="x = 1\n" * (LONG_FILE_LINES + 1), short="x = 1\n" * LONG_FILE_LINES)
    (sentence,) = find_long_files(tmp_path)
    assert sentence.startswith(f"airflow_lake_provider/long.py has {LONG_FILE_LINES + 1} lines")


def test_folder_without_a_layer_is_named(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    write(tmp_path, stray="", errors="")
    assert find_unlayered(tmp_path) == {"stray"}


def test_class_with_the_name_of_another_one_is_named_on_either_side_of_the_spark_border(tmp_path: Path) -> None:
    write(tmp_path, slices="class FileSlice:\n    pass\n\n\nclass _Own:\n    pass\n", others="class _Own:\n    pass\n")
    assert list(find_repeated_classes(tmp_path)) == []
    (tmp_path / "spark_jobs").mkdir()
    (tmp_path / "spark_jobs" / "reader.py").write_text("class FileSlice:\n    pass\n", encoding="utf-8")
    (sentence,) = find_repeated_classes(tmp_path)
    assert sentence.startswith("FileSlice is a class of airflow_lake_provider/slices.py and of spark_jobs/reader.py")


def test_test_that_another_module_imports_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "helpers.py").write_text("from tests.other import x\n", encoding="utf-8")
    assert list(find_imported_tests(tmp_path)) == []
    (folder / "test_a.py").write_text("from tests.test_b import x\n", encoding="utf-8")
    (folder / "test_b.py").write_text("from tests import test_a\n", encoding="utf-8")
    first, second = find_imported_tests(tmp_path)
    assert first == "tests/test_a.py imports tests.test_b: move what both need to tests/support/"
    assert second.startswith("tests/test_b.py imports tests.test_a")


def write(root: Path, **modules: str) -> None:
    (root / "airflow_lake_provider").mkdir()
    for name, text in {"__init__": "", **modules}.items():
        (root / "airflow_lake_provider" / f"{name}.py").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("kind", ["operators", "sensors", "triggers"])
def test_provider_names_every_module_of_operators_sensors_and_triggers_to_airflow(kind: str) -> None:
    (entry,) = get_provider_info()[kind]
    found = {f"airflow_lake_provider.{kind}.{path.stem}" for path in (PACKAGE / kind).glob("[!_]*.py")}
    assert set(entry["python-modules"]) == found


def test_links_of_the_documentation_lead_somewhere() -> None:
    assert find_broken(ROOT) == []


def test_the_documentation_has_no_private_words() -> None:
    found = {page.name: find_words(page.read_text(encoding="utf-8")) for page in list_pages(ROOT)}
    assert {name: words for name, words in found.items() if words} == {}
