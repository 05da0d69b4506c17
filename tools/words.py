"""Find private words: words for which the field has a term, and persons that stand for processes.

    python -m tools.words    # exit code 1 when a page, a text of the code or a name in it has one (make check)

In the documentation it reads sentences, in the code comments, docstrings and messages as well, and the names that the
code defines: of the package, its jobs, tests, benchmarks and tools, and of the app's TypeScript. Generated pages take
their sentences from the code.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tools.links import ROOT, list_pages

# What to write instead, by the word; each is matched as a whole word, in any case.
INSTEAD = {
    r"look(?:s|ed|ing)?\s+(?:at|for|again|now)|looked|looks": "refresh, read, evaluate, search",
    r"told|tells?": "notify, say, show, report",
    r"nobody|somebody|anybody|everybody|whoever": "name the process, or the person",
    r"shall": "must, or the present tense",
    r"for\s+ever|forever": "indefinitely",
    r"mend(?:s|ed|ing)?": "repair, fix",
    r"beside": "next to, besides, with",
    r"anew": "again, or a verb with re-",
    r"doors?|desks?|surgeons?|habits?|rhythms?": "gateway, admission controller, repairer, mode, commit interval",
    r"news|judge?ments?": "progress or change, verdict",
    r"(?<!user )(?<!users )(?<!person )(?<!people )who(?!\s+may)": "name the process, with which or that",
    r"troubles?": "problem, failure, error",
    r"surroundings": "infrastructure",
    r"ours?|we|us": "the provider",
}
# Measurements and trials name their authors' machine; this is the phrase that may.
ALLOWED = re.compile(r"in our tests")
_CODE = re.compile(r"^ *(```|~~~).*?^ *\1 *$|`[^`\n]*`|https?://\S+", re.M | re.S)


def find_words(text: str) -> list[tuple[int, str, str]]:
    """Return line, word and what to write instead, of each private word in a page."""
    plain = _CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
    plain = ALLOWED.sub("", plain)
    found = [
        (plain.count("\n", 0, word.start()) + 1, word[0], instead)
        for pattern, instead in INSTEAD.items()
        for word in re.finditer(rf"\b(?:{pattern})\b", plain, re.I)
    ]
    return sorted(found)


# --- The same in the code: its texts, and the names that it defines

CODE_FOLDERS = (
    "airflow_lake_provider",
    "spark_jobs",
    "dags",
    "demo",
    "docker",
    "local_stack",
    "tools",
    "benchmarks",
    "tests",
)
APP_FOLDER = "frontend/src"
# "us" and "ours" are left to the documentation: readers of the code know the package.
TEXTS = {
    r"look(?:s|ed|ing)?(?![- ]?up\b)": "refresh, read, evaluate, search",
    **{pattern: instead for pattern, instead in INSTEAD.items() if not pattern.startswith(("look", "our"))},
    r"telling": "notify, say, show, report",
    r"th(?:is|e) product(?:'s)?(?! of)": "the provider",
    r"dear(?:er|est)?": "costly, over budget",
    r"gravest": "most severe, worst",
    r"in vain": "without effect, and fails",
}
# All of them at once: a file is read once.
_ANY_TEXT = re.compile(
    r"\b(?:" + "|".join(f"(?P<t{number}>{pattern})" for number, pattern in enumerate(TEXTS)) + r")\b", re.I
)
NAMES = {
    "look": "refresh, evaluate, read",
    "tell": "notify, report",
    "told": "notified, reported",
    "door": "gateway, client",
    "desk": "controller",
    "news": "progress, changes",
    "surgeon": "repairer",
    "habit": "mode",
    "rhythm": "commit_interval",
    "mend": "repair, fix",
    "shall": "must, is_wanted",
    "nobody": "the process",
    "somebody": "the process",
    "forever": "indefinitely",
    "anybody": "the process",
    "everybody": "the process",
    "whoever": "the process",
    "beside": "next_to, besides",
    "judgement": "verdict, forecast",
    "treatment": "repair",
    "trouble": "problem, failure, error",
    "dear": "costly, over_budget",
    "surrounding": "infrastructure",
}
# Names that are right, each with its reason; calls of other packages (`stream.tell()`) are not definitions.
ALLOWED_NAMES: dict[str, str] = {}
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ENDINGS = ("", "s", "ed", "ing")
# Of a thread, a metric or the like: the parts of such a string are read as those of a name.
_COMPOUND = re.compile(r"[a-z]+(?:[-_.][a-z]+)+")
_APP_NAME = re.compile(r"[A-Za-z_]\w*")


def find_code_words(source: str) -> list[tuple[int, str, str]]:
    """Return line, word and what to write instead, of each private word in a module's texts and names."""
    tree = ast.parse(source)
    names = [(line, name, instead) for line, name in _defined(tree) if (instead := _instead_of(name)) is not None]
    return sorted([*_in_texts(tree, source), *names])


def _in_texts(tree: ast.Module, source: str) -> Iterator[tuple[int, str, str]]:
    for first, text in _texts(tree, source):
        plain = _CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
        for word in _ANY_TEXT.finditer(plain):
            yield (
                first + plain.count("\n", 0, word.start()),
                word[0],
                list(TEXTS.values())[int((word.lastgroup or "t0")[1:])],
            )


def _texts(tree: ast.Module, source: str) -> Iterator[tuple[int, str]]:
    """Yield comments, and strings of more than one word, with their first lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _defined(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the names of functions, classes, arguments, attributes, variables and threads where they are defined."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.keyword) and node.arg in {"name", "thread_name_prefix"}:
            value = node.value.value if isinstance(node.value, ast.Constant) else None
            if isinstance(value, str) and _COMPOUND.fullmatch(value):
                yield node.value.lineno, value


def find_app_words(source: str) -> list[tuple[int, str, str]]:
    """Return line, word and what to write instead, of each private word in the texts and names of a file of the app."""
    found: set[tuple[int, str, str]] = set()
    for number, line in enumerate(source.splitlines(), 1):
        texts = (word[0] for word in _ANY_TEXT.finditer(line))
        found |= {(number, word, "a word of the field") for word in texts}
        names = ((name, _instead_of(name)) for name in _APP_NAME.findall(line))
        found |= {(number, name, instead) for name, instead in names if instead is not None}
    return sorted(found)


def _instead_of(name: str) -> str | None:
    # A look-up is the field's own word.
    parts = [part.lower() for part in _PART.findall(re.sub("look[-_]?up", "", name, flags=re.I))]
    if name in ALLOWED_NAMES:
        return None
    return next((NAMES[word] for word in NAMES for ending in _ENDINGS if word + ending in parts), None)


def list_modules(root: Path) -> list[Path]:
    """Return the modules that are read, without copies that a build made."""
    found = (path for folder in CODE_FOLDERS for path in (root / folder).rglob("*.py"))
    # The list itself has the words, and so has its test.
    own = {Path(__file__).resolve(), root / "tests" / "unit" / "tools" / "test_words.py"}
    return sorted(path for path in found if "_shipped" not in path.parts and path not in own)


def list_app_files(root: Path) -> list[Path]:
    """Return the files of the app in Airflow's UI."""
    return sorted(path for path in (root / APP_FOLDER).rglob("*.ts*") if path.is_file())


def main() -> int:
    """Print each word with its file and line."""
    pages = [page for page in list_pages(ROOT) if "reference" not in page.relative_to(ROOT).parts]
    found = [(page, *word) for page in pages for word in find_words(page.read_text(encoding="utf-8"))]
    modules = list_modules(ROOT)
    found += [(module, *word) for module in modules for word in find_code_words(module.read_text(encoding="utf-8"))]
    app = list_app_files(ROOT)
    found += [(path, *word) for path in app for word in find_app_words(path.read_text(encoding="utf-8"))]
    for path, line, word, instead in found:
        print(f"{path.relative_to(ROOT)}:{line}: {word!r}: write {instead}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
