"""Text from outside where other programs read markup."""

from __future__ import annotations

import pytest

from airflow_lake_provider.shared.plain_text import without_links


@pytest.mark.parametrize(
    "text",
    [
        *("<https://evil.example|Log in>", "<!channel>", "[Log in](https://evil.example)"),
        *("![](https://evil.example/x.png)", "<img src=https://evil.example>"),
        *("[Log in][1]\n\n[1]: https://evil.example", "[a](b)](c)][d]:e"),
    ],
)
def test_markup_of_chats_and_notes_is_visible_text(text: str) -> None:
    shown = without_links(text)
    assert not any(sign in shown for sign in ("<", ">", "](", "][", "]:"))
    assert "".join(filter(str.isalnum, shown)) == "".join(filter(str.isalnum, text))


def test_sentences_without_markup_stay_as_they_are() -> None:
    text = "5 delta commits (rule: 3); partitions [a, b], 2026-11-21: see http://host/lake"
    assert without_links(text) == text
