"""The option `where`: which rows of a table reach a sink, as comparisons of its columns with values.

A small language of its own: nothing of it reaches a database, Spark or a template. Comparisons are joined by `and`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TypeAlias

Value: TypeAlias = str | Decimal | bool

EXAMPLE = "region = 'eu' and amount >= 10 and closed_at is null"


class Operator(StrEnum):
    """How a column is compared. A null fits `is null` alone."""

    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    AT_MOST = "<="
    MORE = ">"
    AT_LEAST = ">="
    IN = "in"
    IS_NULL = "is null"
    IS_NOT_NULL = "is not null"


@dataclass(frozen=True, slots=True)
class ColumnComparison:
    """One comparison of a column; its values are as written: texts, numbers, true or false."""

    column: str
    operator: Operator
    values: tuple[Value, ...] = ()


class WhereError(ValueError):
    """A text is no list of comparisons."""


_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?(?![\w.]))|`(?P<quoted>[^`]+)`|(?P<word>[^\W\d]\w*)"
    r"|(?P<sign><=|>=|!=|<>|[=<>(),]))"
)
_SPACES = re.compile(r"\s*")
MAX_SHOWN = 100
"""Characters of a text that an error repeats."""
_FLAGS = {"true": True, "false": False}
_SIGNS = {**{operator.value: operator for operator in Operator}, "<>": Operator.NOT_EQUAL}


def parse_where(text: str) -> tuple[ColumnComparison, ...]:
    """Return the comparisons, all of which a row must fit; none for an empty text. Raises WhereError."""
    parser = _Parser(text)
    found = list[ColumnComparison]()
    while not parser.is_at_end or found:
        found.append(parser.comparison())
        if parser.is_at_end:
            break
        parser.require("and")
    return tuple(found)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return _SPACES.fullmatch(self._text, self._at) is not None

    def comparison(self) -> ColumnComparison:
        column = self._column()
        if self._takes("is"):
            operator = Operator.IS_NOT_NULL if self._takes("not") else Operator.IS_NULL
            self.require("null")
            return ColumnComparison(column, operator)
        if self._takes("in"):
            self.require("(")
            values = [self._value()]
            while self._takes(","):
                values.append(self._value())
            self.require(")")
            return ColumnComparison(column, Operator.IN, tuple(values))
        found = self._match()
        sign = "" if found is None else found["sign"] or ""
        if found is None or sign not in _SIGNS:
            raise WhereError(f"=, !=, <, <=, >, >=, in, is null or is not null is expected before {self._rest()}")
        self._at = found.end()
        return ColumnComparison(column, _SIGNS[sign], (self._value(),))

    def require(self, word: str) -> None:
        if not self._takes(word):
            raise WhereError(f"{word!r} is expected before {self._rest()}")

    def _column(self) -> str:
        found = self._match()
        if found is not None and found.lastgroup in {"word", "quoted"}:
            self._at = found.end()
            return str(found[found.lastgroup])
        raise WhereError(f"the name of a column is expected before {self._rest()}")

    def _value(self) -> Value:
        found = self._match()
        kind = found.lastgroup if found is not None else None
        is_value = kind in {"text", "number"} or (found is not None and (found["word"] or "").lower() in _FLAGS)
        if found is None or not is_value:
            raise WhereError(f"a value ('text', a number, true or false) is expected before {self._rest()}")
        self._at = found.end()
        if kind == "text":
            return str(found["text"])[1:-1].replace("''", "'")
        return Decimal(found["number"]) if kind == "number" else _FLAGS[found["word"].lower()]

    def _takes(self, word: str) -> bool:
        found = self._match()
        if found is None or (found["word"] or found["sign"] or "").lower() != word:
            return False
        self._at = found.end()
        return True

    def _match(self) -> re.Match[str] | None:
        return _TOKEN.match(self._text, self._at)

    def _rest(self) -> str:
        rest = self._text[self._at :].strip()[:MAX_SHOWN]
        return repr(rest) if rest else "the end"
