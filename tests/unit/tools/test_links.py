"""Broken links of the documentation are found, and links that work are not reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools import links
from tools.mkdocs_hooks import rewrite

if TYPE_CHECKING:
    from pathlib import Path


def make_docs(root: Path, text: str) -> Path:
    (root / "docs").mkdir()
    (root / "docs" / "page.md").write_text(text, encoding="utf-8")
    (root / "docs" / "other.md").write_text("# Other\n\n## Set it up\n\n## Set it up\n", encoding="utf-8")
    (root / "README.md").write_text("[page](docs/page.md)\n", encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("[x](gone.md)", "there is no such file", id="file"),
        pytest.param("[x](other.md#gone)", "the page has no such heading", id="heading"),
        pytest.param("[x](other.md#set-it-up-2)", "the page has no such heading", id="third-of-two"),
        pytest.param("[x](#gone)", "the page has no such heading", id="own-heading"),
        pytest.param("![x](gone.png)", "there is no such file", id="picture"),
    ],
)
def test_a_broken_link_is_named_with_its_page(tmp_path: Path, text: str, problem: str) -> None:
    (found,) = links.find_broken(make_docs(tmp_path, text))
    assert found.startswith("docs/page.md: ")
    assert found.endswith(problem)


@pytest.mark.parametrize(
    "text",
    [
        "# Own heading: `x`, and [more](other.md)\n\n[x](#own-heading-x-and-more)",
        "[x](other.md#set-it-up) [y](other.md#set-it-up-1) [z](../README.md)",
        "[x](https://example.org/gone)",
        "```\n[x](gone.md)\n```\n\n`[x](gone.md)`",
    ],
)
def test_a_link_that_works_is_not_reported(tmp_path: Path, text: str) -> None:
    assert links.find_broken(make_docs(tmp_path, text)) == []


@pytest.mark.parametrize(
    ("file", "uri", "link", "expected"),
    [
        pytest.param("docs/design/indexing.md", "design/indexing.md", "[a](../indexing.md#x)", "[a](../indexing.md#x)"),
        pytest.param("docs/versioning.md", "versioning.md", "[a](../CHANGELOG.md)", "[a](changelog.md)"),
        pytest.param("docs/design/indexing.md", "design/indexing.md", "[a](../../README.md)", "[a](../overview.md)"),
        pytest.param("README.md", "overview.md", "[a](docs/writers.md)", "[a](writers.md)"),
        pytest.param("README.md", "overview.md", "[`[lake]`](docs/writers.md#x)", "[`[lake]`](writers.md#x)"),
        pytest.param("docs/writers.md", "writers.md", "[a](../Makefile)", "a", id="code-becomes-text"),
        pytest.param("docs/writers.md", "writers.md", "[a](../gone.py)", "[a](../gone.py)", id="broken-stays-broken"),
        pytest.param("docs/writers.md", "writers.md", "[a](https://example.org)", "[a](https://example.org)"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(file: str, uri: str, link: str, expected: str) -> None:
    assert rewrite(link, links.ROOT / file, uri, links.ROOT / "docs") == expected
