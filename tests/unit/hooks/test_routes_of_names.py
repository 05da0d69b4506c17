"""No name from a run's conf, an XCom or an answer leads a client of the manager to another route."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_lake_provider.errors import MalformedRequestError
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.hooks.route_path import route
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.job_contract import Service

TABLE = "orders-0123456789abcdef"
LEADING_AWAY = ["..", ".", "", "../../ledger-0123456789abcdef", "../../../sweep?", "a/b", "..\\..\\x", "/"]
ODD = ["x?", "x#y", "x?y=1", "a%2f..%2f..%2fledger", "%2e%2e", "{{ 7*7 }}", "ä b", "x;y"]

USES: list[Callable[[LakeHook, str], Any]] = [
    lambda hook, name: hook.forget_sink(TABLE, name),
    lambda hook, name: hook.pause_replication(TABLE, name, paused=True),
    lambda hook, name: hook.release_hold(TABLE, name, "1", "why"),
    lambda hook, name: hook.begin_replication(TABLE, name, 60, "run"),
    lambda hook, name: hook.report_progress(TABLE, name, {}),
    lambda hook, name: hook.find_sink_entry(TABLE, name),
    lambda hook, name: hook.end_hold(TABLE, name),
    lambda hook, name: hook.end_hold(name, "0" * 32),
    lambda hook, name: hook.renew_hold(TABLE, name),
    lambda hook, name: hook.add_hold(name, {}) if "/" not in name else route(name),
    lambda hook, name: hook.get_table(name),
    lambda hook, name: hook.release_executor(name, Service.CLEAN, "token"),
]


def hook_that_notes(asked: list[str]) -> LakeHook:
    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        return httpx.Response(200, json={})

    hook = LakeHook("unused")
    hook._client = httpx.Client(base_url="http://manager/v1/hoodie", transport=httpx.MockTransport(answer))
    return hook


@pytest.mark.parametrize("use", range(len(USES)))
@pytest.mark.parametrize("name", LEADING_AWAY)
def test_name_that_leads_to_another_route_asks_nothing(use: int, name: str) -> None:
    asked: list[str] = []
    with pytest.raises(MalformedRequestError, match="no name of a table, a sink or a hold"):
        USES[use](hook_that_notes(asked), name)
    assert not asked


@pytest.mark.parametrize("use", range(len(USES)))
@pytest.mark.parametrize("name", ODD)
def test_odd_name_stays_one_part_of_the_path(use: int, name: str) -> None:
    plain: list[str] = []
    odd: list[str] = []
    USES[use](hook_that_notes(plain), "plain")
    USES[use](hook_that_notes(odd), name)
    assert len(odd) == 1
    wanted, found = plain[0].split("/"), odd[0].split("/")
    assert [part for part in found if part in wanted] == [part for part in wanted if part != "plain"]
    assert len(found) == len(wanted)
    assert not {"?", "#"} & set(odd[0])


def test_table_is_named_by_a_path_of_any_kind_or_its_id() -> None:
    asked: list[str] = []
    for table in ("/lake/orders", Path("/lake/orders"), "file:///lake/orders/", table_id_of("/lake/orders")):
        hook_that_notes(asked).add_hold(table, {})
    assert len(set(asked)) == 1
