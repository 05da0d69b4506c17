"""JSON of another process becomes a dataclass: exactly, or as far as this release knows its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

from airflow_lake_provider.shared.typed_json import read_exact, read_known


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Part:
    count: int
    share: float | None


@dataclass(frozen=True)
class Whole:
    name: str
    parts: tuple[Part, ...]
    totals: Mapping[str, int]
    anything: object
    colour: Colour = Colour.RED
    later: tuple[str, ...] = ()


BODY: dict[str, Any] = {
    "name": "a",
    "parts": [{"count": 1, "share": 2}, {"count": 3, "share": None}],
    "totals": {"x": 1},
    "anything": [1, {"a": None}],
    "colour": "red",
    "later": ["b"],
}
WHOLE = Whole("a", (Part(1, 2), Part(3, None)), {"x": 1}, [1, {"a": None}], Colour.RED, ("b",))


def test_value_is_read_with_all_its_parts() -> None:
    assert read_exact(Whole, BODY) == WHOLE
    assert read_known(Whole, BODY) == WHOLE


def test_field_of_another_release_is_refused_by_one_and_passed_over_by_the_other() -> None:
    newer = BODY | {"parts": [{"count": 1, "share": 2, "new": 0}]}
    older = {name: value for name, value in BODY.items() if name not in {"colour", "later"}}
    with pytest.raises(ValueError, match=r"field 'parts\[0\]\.new' is unknown; known are count, share"):
        read_exact(Whole, newer)
    with pytest.raises(ValueError, match="field 'colour' is missing"):
        read_exact(Whole, older)
    assert read_known(Whole, newer | {"new": 0}).parts == (Part(1, 2),)
    assert read_known(Whole, older).later == ()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": 1}, "field 'name' is 1, expected a text"),
        ({"parts": [{"share": 1}]}, r"field 'parts\[0\].count' is missing"),
        ({"parts": [{"count": True, "share": 1}]}, r"field 'parts\[0\].count' is True, expected a whole number"),
        ({"totals": []}, "field 'totals' is list, expected an object"),
        ({"totals": {"x": "1"}}, "field 'totals.x' is '1', expected a whole number"),
        ({"colour": "blue"}, "field 'colour' is 'blue', allowed: red"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(change: dict[str, Any], named: str) -> None:
    for read in (read_exact, read_known):
        with pytest.raises(ValueError, match=named):
            read(Whole, BODY | change)


@pytest.mark.parametrize("body", [None, [], "a", 1])
def test_what_is_no_object_is_refused(body: object) -> None:
    with pytest.raises(ValueError, match="field 'body' is"):
        read_known(Whole, body)
