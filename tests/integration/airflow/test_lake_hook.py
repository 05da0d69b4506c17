"""The hook against what servers answer: ours, Airflow's page where ours is missing, and nothing at all."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from airflow_lake_provider.errors import (
    ConfigError,
    ExecutorBusyError,
    LakeError,
    LeaseLostError,
    ManagerUnreachableError,
)
from airflow_lake_provider.job_contract import Service

pytestmark = pytest.mark.integration


def hook_with(answer: Callable[[httpx.Request], httpx.Response]) -> object:
    from airflow_lake_provider.hooks.lake import LakeHook

    hook = LakeHook()
    hook._client = httpx.Client(base_url="http://test/v1/hoodie", transport=httpx.MockTransport(answer))
    return hook


def refuse(_: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


@pytest.mark.parametrize(
    ("answer", "error", "retriable"),
    [
        pytest.param(lambda _: httpx.Response(401, json={"detail": "no token"}), ConfigError, False, id="401"),
        pytest.param(
            lambda _: httpx.Response(503, json={"detail": "database"}), ManagerUnreachableError, True, id="503"
        ),
        pytest.param(lambda _: httpx.Response(404, text="<html>"), ConfigError, False, id="not-mounted"),
        pytest.param(refuse, ManagerUnreachableError, True, id="down"),
        pytest.param(lambda _: httpx.Response(200, text="<html>soon"), ManagerUnreachableError, True, id="proxys-page"),
        pytest.param(lambda _: httpx.Response(200, json=["soon"]), ManagerUnreachableError, True, id="other-json"),
    ],
)
def test_hook_translates_failures_to_errors_that_know_whether_to_retry(
    answer: Callable[[httpx.Request], httpx.Response], error: type[LakeError], *, retriable: bool
) -> None:
    with pytest.raises(error) as caught:
        hook_with(answer).list_tables()  # type: ignore[attr-defined]
    assert caught.value.retriable is retriable


def test_hook_names_the_holder_of_a_lease_and_knows_a_lost_one() -> None:
    hook = hook_with(lambda _: httpx.Response(409, json={"detail": "executed by run r1 (try 1)"}))
    with pytest.raises(ExecutorBusyError, match="run r1"):
        hook.acquire_executor("t", Service.COMPACTION, "r2", 1)  # type: ignore[attr-defined]
    with pytest.raises(LeaseLostError):
        hook.renew_executor("t", Service.COMPACTION, "token")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(httpx.Response(200, text="<html>maintenance"), id="page"),
        pytest.param(httpx.Response(200, json={"status": "maintenance"}), id="json-of-a-proxy"),
        pytest.param(httpx.Response(204), id="nothing"),
    ],
)
def test_answer_that_is_not_the_managers_neither_renews_nor_takes_a_lease(answer: httpx.Response) -> None:
    hook = hook_with(lambda _: answer)
    with pytest.raises(ManagerUnreachableError):
        hook.renew_executor("t", Service.COMPACTION, "token")  # type: ignore[attr-defined]
    with pytest.raises(ManagerUnreachableError):
        hook.acquire_executor("t", Service.COMPACTION, "r", 1)  # type: ignore[attr-defined]


def test_hook_without_a_connection_takes_address_and_token_from_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow_lake_provider.hooks.lake import LakeHook
    from tests.integration.airflow.conftest import SERVICE_TOKEN

    # The tests' own: without it, the manager is where Airflow assumes its API server.
    monkeypatch.delenv("AIRFLOW__API__BASE_URL")
    client = LakeHook().get_conn()
    assert client.headers["Authorization"] == f"Bearer {SERVICE_TOKEN}"
    assert str(client.base_url) == "http://localhost:8080/v1/hoodie/"


def test_hook_takes_address_and_token_from_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_lake_provider.hooks.lake import LakeHook

    monkeypatch.setenv("AIRFLOW_CONN_LAKE_DEFAULT", "lake://:s3cret@airflow.example:8443/https")
    client = LakeHook().get_conn()
    assert str(client.base_url) == "https://airflow.example:8443/v1/hoodie/"
    assert client.headers["Authorization"] == "Bearer s3cret"
