"""What `where` may say, and what it means; a text that says anything else is refused where the file is read."""

from __future__ import annotations

import time
from decimal import Decimal

import pytest

from airflow_lake_provider.sink_options.where import ColumnComparison, Operator, WhereError, parse_where


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        pytest.param("", (), id="nothing"),
        pytest.param("a = 'x'", (ColumnComparison("a", Operator.EQUAL, ("x",)),), id="text"),
        pytest.param(
            "a=1 AND `two words` <> -2.50 and c Is Not Null",
            (
                ColumnComparison("a", Operator.EQUAL, (Decimal(1),)),
                ColumnComparison("two words", Operator.NOT_EQUAL, (Decimal("-2.50"),)),
                ColumnComparison("c", Operator.IS_NOT_NULL),
            ),
            id="several",
        ),
        pytest.param("a in ('it''s', ')') and b is null", (
            ColumnComparison("a", Operator.IN, ("it's", ")")), ColumnComparison("b", Operator.IS_NULL)
        ), id="list"),
        pytest.param("ist >= 5 and android < 6", (
            ColumnComparison("ist", Operator.AT_LEAST, (Decimal(5),)),
            ColumnComparison("android", Operator.LESS, (Decimal(6),)),
        ), id="names that begin like words"),
        pytest.param("a = TRUE", (ColumnComparison("a", Operator.EQUAL, (True,)),), id="flag"),
    ],
)  # fmt: skip
def test_comparisons_mean(text: str, meant: tuple[ColumnComparison, ...]) -> None:
    assert parse_where(text) == meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("a", "is expected before the end", id="no comparison"),
        pytest.param("a = b", "a value .* is expected before 'b'", id="two columns"),
        pytest.param("a = 'x", "a value .* is expected before", id="open text"),
        pytest.param("a = 'x' or b = 'y'", "'and' is expected before \"or b = 'y'\"", id="or"),
        pytest.param("a = 'x' and", "the name of a column is expected before the end", id="open and"),
        pytest.param("(a = 'x')", "the name of a column is expected before", id="parentheses"),
        pytest.param("a = 'x'; drop table t", "'and' is expected before '; drop table t'", id="statement"),
        pytest.param("a = {{ x }}", "a value .* is expected", id="template"),
        pytest.param("upper(a) = 'X'", "is expected before", id="function"),
        pytest.param("a in ()", "a value .* is expected before", id="empty list"),
        pytest.param("a = 1x", "a value .* is expected before '1x'", id="number with letters"),
        pytest.param("a == 1", "a value .* is expected before '= 1'", id="two signs"),
    ],
)
def test_anything_else_is_refused(text: str, said: str) -> None:
    with pytest.raises(WhereError, match=said):
        parse_where(text)


def test_long_text_costs_in_proportion_and_an_error_repeats_little_of_it() -> None:
    begun_s = time.process_time()
    assert len(parse_where(" and ".join(["amount = 1"] * 20_000))) == 20_000
    few_s = time.process_time() - begun_s
    assert len(parse_where(" and ".join(["amount = 1"] * 80_000))) == 80_000
    assert time.process_time() - begun_s - few_s < 10 * few_s
    with pytest.raises(WhereError) as refused:
        parse_where("a = 'x' " + "y" * 100_000)
    assert len(str(refused.value)) < 200
