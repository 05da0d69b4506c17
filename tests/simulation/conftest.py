"""What every simulation uses."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.database import Database


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    database = Database()
    yield database
    database.close()


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """The provider logs what is injected; no test reads that."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
