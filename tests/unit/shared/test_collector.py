"""The search for garbage is paused inside only, and stays as it was otherwise."""

from __future__ import annotations

import gc

import pytest

from airflow_lake_provider.shared.collector import collector_paused


def test_collector_is_paused_inside_and_back_also_after_an_error() -> None:
    def fail() -> None:
        with collector_paused():
            assert not gc.isenabled()
            raise ValueError("inside")

    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"):
        fail()
    assert gc.isenabled()


def test_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
