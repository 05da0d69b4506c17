"""Places of one caller leave some for the others, and rates refill with time."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest

from airflow_lake_provider.request_bounds import Held, Places, Rate, Rates


class RefusedError(Exception):
    """What a refused request gets."""

    def __init__(self, held: Held) -> None:
        super().__init__(str(held))
        self.held = held


def test_places_are_counted_for_one_and_for_all_and_given_back() -> None:
    places = Places(5, 3, RefusedError)
    with places.hold("a", 2), places.hold("b", 2):
        with pytest.raises(RefusedError) as own, places.hold("a", 2):
            pass
        assert own.value.held == Held("a", 2, 4, is_own=True)
        with pytest.raises(RefusedError) as all_of_them, places.hold("c", 2):
            pass
        assert all_of_them.value.held == Held("c", 0, 4, is_own=False)
        with suppress(ValueError), places.hold("a"):
            raise ValueError
        with places.hold("a"):
            pass
    assert not places._held


def test_two_callers_with_many_places_leave_some_for_one_with_few_and_for_those_of_all_tables() -> None:
    places = Places(80, 40, RefusedError)
    with ExitStack() as held:
        for name in ("shop-1", "shop-2"):
            with suppress(RefusedError):
                for _ in range(40):
                    held.enter_context(places.hold(name, left_free=20))
        for _ in range(10):
            held.enter_context(places.hold("bank", left_free=20))
        with pytest.raises(RefusedError), places.hold("bank", left_free=20):
            pass
        for _ in range(20):
            held.enter_context(places.hold("all tables"))


def test_refused_request_takes_nothing_from_any_rate() -> None:
    rates = Rates()
    one = Rate("one", per_s=1, burst=1)
    everyone = Rate("", per_s=10, burst=10)
    assert rates.take(0.0, one, everyone) is None
    for _ in range(20):
        assert rates.take(0.0, one, everyone) is one
    for _ in range(9):
        assert rates.take(0.0, everyone) is None
    assert rates.take(0.0, everyone) is everyone


def test_rate_comes_back_with_time_up_to_its_burst_and_not_with_a_clock_set_back() -> None:
    rates = Rates()
    rate = Rate("one", per_s=2, burst=2)
    assert [rates.take(10.0, rate) for _ in range(3)] == [None, None, rate]
    assert rates.take(5.0, rate) is rate
    assert [rates.take(1000.0, rate) for _ in range(3)] == [None, None, rate]
