"""Kills on a real YARN: whatever dies, the compaction is done once, its rows are as before, and nothing runs on.

`LAKE_YARN_KILLS` is the number of rounds, `LAKE_YARN_SEED` what the moments are drawn from: in every other round before
the driver has the table's lock, else after its plan was made.
"""

from __future__ import annotations

import os

import pytest

from local_stack.writer_process import StandingWriter
from tests.integration.engines.yarn_stage import YarnStage
from tests.support.yarn_kills import BOTH, CLIENT, strike_and_require

pytestmark = [pytest.mark.integration, pytest.mark.soak(covered_by="tests/integration/engines/test_fencing.py")]

ROUNDS = int(os.environ.get("LAKE_YARN_KILLS", "2"))


@pytest.mark.parametrize("kill", BOTH)
@pytest.mark.parametrize("number", range(max(ROUNDS, 1)))
def test_compaction_is_done_once_whatever_is_killed(
    stage: YarnStage, reader: StandingWriter, kill: str, number: int
) -> None:
    strike_and_require(stage, reader, f"orders-{kill}-{number}", BOTH[kill], number)


@pytest.mark.parametrize("kill", CLIENT)
@pytest.mark.parametrize("number", range(max(ROUNDS, 1)))
def test_compaction_in_client_mode_is_done_once_whatever_is_killed(
    stage: YarnStage, reader: StandingWriter, monkeypatch: pytest.MonkeyPatch, kill: str, number: int
) -> None:
    monkeypatch.setattr(stage, "deploy_mode", "client")
    strike_and_require(stage, reader, f"clicks-{kill}-{number}", CLIENT[kill], number)
