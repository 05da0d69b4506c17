"""`make test` makes each claim of `make soak` by a shorter test, which the mark names where it is in another file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIELD = ROOT / "tests" / "field"
"""A public report that was tried: its file is the claim."""


def list_marks(tree: ast.AST) -> Iterator[str | None]:
    """Yield `covered_by` of each mark, None for one without."""
    called = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.soak":
            called.add(node.func)
            (cover,) = (keyword.value for keyword in node.keywords if keyword.arg == "covered_by")
            assert isinstance(cover, ast.Constant)
            yield str(cover.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in called and ast.unparse(node) == "pytest.mark.soak":
            yield None


def is_soak_alone(tree: ast.Module) -> bool:
    """Return whether `make test` runs nothing of a file."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            return "mark.soak" in ast.unparse(node.value)
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return all(any(ast.unparse(one).startswith("pytest.mark.soak") for one in test.decorator_list) for test in tests)


def find_uncovered(root: Path, path: Path) -> Iterator[str]:
    """Yield what is wrong with the marks of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    is_alone = is_soak_alone(tree)
    for cover in list_marks(tree):
        if cover is None and is_alone:
            yield f"{path.name}: `make test` runs none of it: name `covered_by`"
        elif cover is not None and not (root / cover).exists():
            yield f"{path.name}: there is no {cover}"
        elif cover is not None and is_soak_alone(ast.parse((root / cover).read_text(encoding="utf-8"))):
            yield f"{path.name}: `make test` does not run {cover}"


def test_each_mark_is_covered_by_a_test_of_make_test() -> None:
    marked = [
        path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if not path.is_relative_to(FIELD) and "mark.soak" in path.read_text(encoding="utf-8")
    ]
    assert len(marked) > 60
    assert [sentence for path in marked for sentence in find_uncovered(ROOT, path)] == []


@pytest.mark.parametrize(
    ("mark", "problem"),
    [
        ("soak", "name `covered_by`"),
        ('soak(covered_by="test_none.py")', "there is no test_none.py"),
        ('soak(covered_by="test_long.py")', "does not run test_long.py"),
        ('soak(covered_by="test_short.py")', ""),
    ],
)
def test_a_mark_without_a_cover_is_found(mark: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "test_short.py").write_text("def test_it(): ...\n", encoding="utf-8")
    long = tmp_path / "test_long.py"
    long.write_text(f"@pytest.mark.{mark}\ndef test_it(): ...\n", encoding="utf-8")
    found = list(find_uncovered(tmp_path, long))
    assert len(found) == bool(problem)
    assert all(problem in sentence for sentence in found)
