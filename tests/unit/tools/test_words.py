"""The list of private words finds them in sentences and in the names of the code, and leaves links and calls alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.words import find_app_words, find_code_words, find_words, list_app_files, list_modules


@pytest.mark.parametrize(
    ("sentence", "word"),
    [
        ("The loop looks at every table.", "looks at"),
        ("Nobody reads it.", "Nobody"),
        ("The sink is told of it.", "told"),
        ("It waits for\never.", "for\never"),
        ("It waits for ever.", "for ever"),
        ("No retry mends it.", "mends"),
        ("Ours is faster.", "Ours"),
        ("It runs beside the writer.", "beside"),
        ("The table's rhythm is known.", "rhythm"),
        ("Who fails in Hudi.", "Who"),
    ],
)
def test_a_private_word_is_found_with_its_line(sentence: str, word: str) -> None:
    found = find_words(f"# Title\n\n{sentence}\n")
    assert [(line, text) for line, text, _ in found] == [(3, word)]


@pytest.mark.parametrize(
    "sentence",
    [
        "Besides, a lookup of shallow tables takes `nobody` a second.",
        "```\nnobody looks at it\n```",
        "See https://example.org/tell/nobody",
        "0.6 s in our tests",
        "Who may do what, and users who read: a person who asks.",
    ],
)
def test_code_links_and_other_words_pass(sentence: str) -> None:
    assert find_words(sentence) == []


def test_lines_below_a_block_of_code_keep_their_numbers() -> None:
    assert find_words("```\nx\ny\n```\nnobody\n")[0][0] == 5


@pytest.mark.parametrize(
    ("source", "line", "word"),
    [
        ("def look_at(table):\n    pass\n", 1, "look_at"),
        ("class AdmissionDesk:\n    pass\n", 1, "AdmissionDesk"),
        ("def read(*, was_told):\n    pass\n", 1, "was_told"),
        ("a = 1\nself.commitRhythm = 2\n", 2, "commitRhythm"),
        ("for news in feed:\n    pass\n", 1, "news"),
        ("if (looks := 1):\n    pass\n", 1, "looks"),
        ("a = 1  # nobody reads it\n", 1, "nobody"),
        ('def a():\n    """Read.\n\n    The loop looks at it.\n    """\n', 4, "looks"),
        ('log.warning("table %s shall wait", table)\n', 1, "shall"),
        ('raise Error(f"{table}: the writer who holds it")\n', 1, "who"),
        ('a = 1\nThread(target=run, name="lake-look")\n', 2, "lake-look"),
        ('Pool(4, thread_name_prefix="lake-replication-news")\n', 1, "lake-replication-news"),
        ("def for_whoever_asks():\n    pass\n", 1, "for_whoever_asks"),
    ],
)
def test_a_private_word_of_the_code_is_found(source: str, line: int, word: str) -> None:
    assert [(where, text) for where, text, _ in find_code_words(source)] == [(line, word)]


@pytest.mark.parametrize(
    "source",
    [
        "end = stream.tell()\n",
        "newsletter = shallow = indoor = 1\n",
        "# The outlook of a look-up; see `tell`.\n",
        'text = "A user who may not read it, and a person who may."\n',
        'kind = "look"\n',
        'Thread(name="lake-lookup")\n',
        "def look_up_ms(): ...\n",
    ],
)
def test_calls_of_other_packages_and_other_words_of_the_code_pass(source: str) -> None:
    assert find_code_words(source) == []


@pytest.mark.parametrize(
    ("line", "word"),
    [("  // nobody reads it", "nobody"), ("const lastLook = 1;", "lastLook"), ("<p>The loop looks at it</p>", "looks")],
)
def test_a_private_word_of_the_app_is_found(line: str, word: str) -> None:
    assert (2, word) in {(number, text) for number, text, _ in find_app_words(f"const a = 1;\n{line}\n")}


def test_tests_benchmarks_and_the_app_are_read() -> None:
    root = Path(__file__).parents[3]
    folders = {path.relative_to(root).parts[0] for path in list_modules(root)}
    assert {"tests", "benchmarks", "airflow_lake_provider", "spark_jobs"} <= folders
    assert root / "frontend" / "src" / "main.tsx" in list_app_files(root)
