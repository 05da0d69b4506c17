"""Text from outside as people and programs may get it: nothing in it is obeyed, or hides what is next to it."""

from __future__ import annotations


def plain(text: str) -> str:
    """Return a text without characters that a terminal obeys: those become escapes, as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        character if character in "\n\t" or character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
