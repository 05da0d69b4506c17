"""Text from outside as people and programs may get it: nothing in it is obeyed, hides the rest, or never ends."""

from __future__ import annotations

import re
from typing import Any

MAX_SAID = 1000
"""Characters of another program's message that ours repeat."""
MAX_SHOWN_OF_KEY = 100
"""Characters of a record key that a message names."""


def plain(text: str, kept: str = "\n\t") -> str:
    """Return a text without characters that a terminal obeys: those become escapes, as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        character if character in kept or character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


_NO_MARKUP = (("<", "\u2039"), (">", "\u203a"), ("](", "] ("), ("][", "] ["), ("]:", "] :"))


def without_links(text: str) -> str:
    """Return a text in which neither Markdown nor a chat program finds a link with another text, an image or a call."""
    for sign, shown in _NO_MARKUP:
        text = text.replace(sign, shown)
    return text


def first_line(error: object, limit: int = MAX_SAID) -> str:
    """Return the first line of what another program said, as plain text; its class where it said nothing."""
    # Cut before it is split: a server may say a gigabyte.
    lines = str(error)[: 4 * limit].strip().splitlines()
    said = plain(lines[0], "\t") if lines else type(error).__name__
    return said if len(said) <= limit else f"{said[:limit]}..."


def show_key(key: str) -> str:
    """Return a record's key as an error shows it: a key may be as long as any text."""
    return first_line(key, 300)


# Where a spreadsheet separates columns by another character than a comma, a formula begins behind that one as well.
_FORMULA = re.compile(r"(^|[;|\t\r\n])(?=\s*?[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20])")


def escape_cell(value: Any) -> Any:
    """Return a value of which no spreadsheet takes a part for a formula, and no terminal one for a code."""
    return _FORMULA.sub(r"\1'", plain(value)) if isinstance(value, str) else value
