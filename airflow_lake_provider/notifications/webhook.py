"""A notifier that posts JSON to a webhook."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
from airflow.sdk import BaseHook, BaseNotifier

from airflow_lake_provider.errors import ConfigError, NotificationFailedError
from airflow_lake_provider.shared.plain_text import MAX_SAID, first_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Connection, Context

DEFAULT_CONN_ID = "lake_webhook"
TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 30.0
"""For the whole of it."""
CONNECT_RETRIES = 2


class LakeWebhookNotifier(BaseNotifier):
    """Posts a lake event as JSON to the address of an Airflow connection of type `http`.

    For `[lake] notifiers`, and for any DAG: `on_failure_callback=LakeWebhookNotifier()`, or a `DeadlineAlert`'s
    callback, where `message` describes the event.

    The connection's host (with schema and port, or a whole URL) is the receiver; login and password are sent as basic
    authentication, a password alone as bearer token, the texts of the extra's `headers` as headers.

    :param http_conn_id: the connection.
    :param endpoint: path below the connection's address (templated).
    :param message: text of the post; empty takes the event's text (templated).
    """

    template_fields: Sequence[str] = ("endpoint", "message")

    def __init__(
        self,
        http_conn_id: str = DEFAULT_CONN_ID,
        endpoint: str = "",
        message: str = "",
        context: Context | None = None,
    ) -> None:
        super().__init__(**({} if context is None else {"context": context}))
        self.http_conn_id = http_conn_id
        self.endpoint = endpoint
        self.message = message

    def notify(self, context: Context) -> None:
        """Post the event; raises NotificationFailedError when it is not accepted."""
        target = target_of(BaseHook.get_connection(self.http_conn_id), self.endpoint)
        # In a thread of its own, for the caller's may have a running event loop.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, _post(target, self._body(context))).result()

    async def async_notify(self, context: Context) -> None:
        """Post the event without blocking; for callbacks that run in the triggerer."""
        target = target_of(await BaseHook.aget_connection(self.http_conn_id), self.endpoint)
        await _post(target, self._body(context))

    def _body(self, context: Any) -> dict[str, Any]:
        event = dict(context.get("lake_event") or _event_of_any(context))
        return event | ({"text": self.message} if self.message else {})


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """The address, headers and credentials of a post."""

    url: str
    headers: dict[str, str]
    auth: httpx.Auth


def target_of(connection: Connection, endpoint: str) -> WebhookTarget:
    """Return the receiver that a connection describes. Raises ConfigError that names the connection."""
    host = connection.host or ""
    if not host:
        raise ConfigError(f"connection {connection.conn_id!r} has no host: set the webhook's address")
    port = f":{connection.port}" if connection.port else ""
    base = host if "://" in host else f"{connection.schema or 'http'}://{host}{port}"
    extra = connection.extra_dejson if isinstance(connection.extra_dejson, dict) else {}
    headers = {str(key): str(value) for key, value in dict(extra.get("headers") or {}).items()}
    password = connection.password or ""
    if password and not connection.login:
        headers.setdefault("Authorization", f"Bearer {password}")
    auth = httpx.BasicAuth(connection.login, password) if connection.login else httpx.Auth()
    url = f"{base.rstrip('/')}/{endpoint.lstrip('/')}" if endpoint else base
    return WebhookTarget(url, headers, auth)


def _event_of_any(context: Any) -> dict[str, Any]:
    run = context.get("dag_run")
    body: dict[str, Any] = {"event": "airflow"}
    for key in ("dag_id", "run_id"):
        value = getattr(run, key, None) or (run.get(key) if isinstance(run, dict) else None)
        body[key] = str(value or context.get(key) or "")
    reason = context.get("exception")
    return body | {"reason": str(reason)} if reason else body


async def _post(target: WebhookTarget, body: dict[str, Any]) -> None:
    """Post a body. Raises NotificationFailedError; of the answer no more is read than the error repeats.

    All notifications wait for one after the other, so a receiver has a limit in time, whatever it sends.
    """
    transport = httpx.AsyncHTTPTransport(retries=CONNECT_RETRIES)
    try:
        async with (
            asyncio.timeout(ANSWER_TIMEOUT_S),
            httpx.AsyncClient(transport=transport, timeout=TIMEOUT_S) as client,
            client.stream("POST", target.url, json=body, headers=target.headers, auth=target.auth) as response,
        ):
            if response.is_success:
                return
            said = await anext(response.aiter_raw(), b"")
    except TimeoutError as error:
        raise NotificationFailedError(f"webhook {target.url} did not answer in {ANSWER_TIMEOUT_S:g} s") from error
    except httpx.HTTPError as error:
        raise NotificationFailedError(f"webhook {target.url} did not answer: {first_line(error)}") from error
    shown = first_line(said[:MAX_SAID].decode("utf-8", "replace"), 200) if said else "nothing"
    raise NotificationFailedError(f"webhook {target.url} answered {response.status_code}: {shown}")
