"""Keeps the files that a long reader of a table needs, in any Python process: a query, a backfill, an export.

    with hudi_hold("/lake/orders", reason="export for audit") as hold:
        spark.read.format("hudi").load("/lake/orders").write.parquet("/exports/orders")

Cleaning and archiving leave what the reader needs until the block ends. A thread renews the hold meanwhile; that of a
process that dies ends after its time to live. Nothing of Airflow is needed: standard library only.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.request import Request

from airflow_lake_provider.config.airflow_options import find_manager
from airflow_lake_provider.config.manager_trust import NO_SETTINGS, explain, ssl_context
from airflow_lake_provider.errors import (
    ConfigError,
    ExecutorBusyError,
    HoldLostError,
    HoldRefusedError,
    LakeError,
    ManagerUnreachableError,
    TableUnknownError,
)
from airflow_lake_provider.hooks.route_path import route
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.instant_clock import boot_s
from airflow_lake_provider.shared.http_answer import ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import PurePath

    from airflow_lake_provider.config.manager_trust import ManagerTrust

log = logging.getLogger(__name__)

MOUNT_PATH = "/v1/hoodie"
TIMEOUT_S = 30.0
TTL_S = 300.0
WAIT_S = 1800.0
"""How long a reader waits for cleans that began before its hold."""
POLL_S = 2.0
RETRY_S = 5.0

_ERRORS: dict[str, type[LakeError]] = {
    error.__name__: error for error in (HoldLostError, HoldRefusedError, TableUnknownError)
}


class ReaderHold:
    """A hold that a thread renews until `release`; `require_held` raises when it is lost."""

    def __init__(self, table_id: str, manager: ManagerClient) -> None:
        self.table_id = table_id
        self.hold_id = ""
        self.instant = ""
        """Requested time from which on the table's files are kept."""
        self._manager = manager
        self._lost: LakeError | None = None
        self._ends_s = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, body: dict[str, Any], ttl_s: float, wait_s: float) -> None:
        """Hold, wait until no clean is at work that began before, and renew from now on. Raises LakeError."""
        asked_s = boot_s()
        answer = self._manager.send("POST", route("tables", self.table_id, "holds"), body | {"ttl_s": ttl_s})
        self.hold_id = str(answer["hold_id"])
        self.instant = str(answer["hold"])
        try:
            until_s = boot_s() + wait_s
            while not answer["is_firm"]:
                if boot_s() >= until_s:
                    runs = ", ".join(answer["waits_for"])
                    raise ExecutorBusyError(
                        f"table {self.table_id}: the runs {runs} began before the hold and have not ended within "
                        f"{wait_s:,.0f} s, so they may remove what it is to keep: try again when they have ended"
                    )
                time.sleep(POLL_S)
                asked_s = boot_s()
                answer = self._renew()
        except BaseException:
            self.release()
            raise
        self._note(answer, asked_s)
        self._thread = threading.Thread(target=self._renew_repeatedly, args=(ttl_s / 3,), daemon=True, name="lake-hold")
        self._thread.start()

    def require_held(self) -> None:
        """Raise HoldLostError when the hold has ended: what was read since may lack rows, or fail."""
        if self._lost is not None:
            raise self._lost
        # After a pause of the whole process the thread may not have noticed yet.
        if boot_s() >= self._ends_s:
            raise HoldLostError(f"the hold {self.hold_id} of table {self.table_id} was not renewed in time: read again")

    def release(self) -> None:
        """End the hold. Where the manager does not answer, it ends by itself."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(TIMEOUT_S)
        try:
            self._manager.send("DELETE", route("tables", self.table_id, "holds", self.hold_id))
        except LakeError as error:
            log.warning("the hold %s could not be released and will end by itself: %s", self.hold_id, error)

    def _renew(self) -> dict[str, Any]:
        return self._manager.send("POST", route("tables", self.table_id, "holds", self.hold_id, "renew"), {})

    def _note(self, answer: dict[str, Any], asked_s: float) -> None:
        # Counted from before the request, by this machine's clock: never longer than the manager counts.
        self._ends_s = asked_s + float(answer["ends_in_s"])

    def _renew_repeatedly(self, every_s: float) -> None:
        pause_s = every_s
        while not self._stop.wait(pause_s):
            asked_s = boot_s()
            try:
                self._note(self._renew(), asked_s)
                pause_s = every_s
            except ManagerUnreachableError as error:
                # Until its time to live is over it may come back.
                log.warning("the hold %s is not renewed: %s", self.hold_id, error)
                pause_s = min(RETRY_S, every_s)
            except LakeError as error:
                log.error("the hold %s is lost: %s", self.hold_id, error)
                self._lost = error
                return


class ManagerClient:
    """Sends a reader's requests to the manager."""

    def __init__(self, url: str, token: str, trust: ManagerTrust) -> None:
        self._url = url.rstrip("/").removesuffix(MOUNT_PATH) + MOUNT_PATH
        self._token = token
        self._context = ssl_context(self._url, trust)

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer. Raises what the manager says, and ManagerUnreachableError."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        try:
            answer = ask(Request(self._url + path, content, headers, method=method), TIMEOUT_S, self._context)
            found = json.loads(answer.content) if answer.content else {}
        except (OSError, ValueError, RecursionError) as error:
            raise ManagerUnreachableError(f"the manager at {self._url} does not answer: {explain(error)}") from error
        if isinstance(found, dict) and answer.is_success:
            return found
        detail = str(found.get("detail", found) if isinstance(found, dict) else found)[:1000]
        known = _ERRORS.get(str(found.get("error")) if isinstance(found, dict) else "")
        if known is not None:
            raise known(detail)
        if answer.status >= 500 or answer.status == 429 or not isinstance(found, dict):
            raise ManagerUnreachableError(f"{self._url}{path} answered {answer.status}: {detail}")
        raise ConfigError(f"the manager refused {method} {path}: {answer.status} {detail}")


@contextmanager
def hudi_hold(  # noqa: PLR0913 - what a reader may say, each by its name
    table: str | PurePath,
    *,
    reason: str = "",
    at_instant: str = "",
    until: datetime | None = None,
    ttl_s: float = TTL_S,
    wait_s: float = WAIT_S,
    reader: str = "",
    manager_url: str = "",
    token: str = "",
    trust: ManagerTrust = NO_SETTINGS,
) -> Iterator[ReaderHold]:
    """Hold the files of a table (its base path, or its id in the registry) until the block ends.

    `at_instant` is as of when the block reads; empty is the table as it is now, so open it within the block. The hold
    ends at `until` in any case, or after the table's `holds.max_hold_s`; and `ttl_s` seconds after the process has
    died. Without `manager_url` and `token` they are those of `[lake]`, from the environment or airflow.cfg.

    Raises HoldRefusedError, TableUnknownError, ExecutorBusyError after `wait_s`; and HoldLostError, at the end of the
    block, when the hold was lost within it: what was read is then not to be trusted.
    """
    if not (manager_url and token):
        found_url, found_token, trust = find_manager()
        manager_url = manager_url or found_url
        token = token or found_token
    table_id = id_of(table)
    body: dict[str, Any] = {"reader": (reader or _name())[:100], "reason": " ".join(reason.split())[:300]}
    body |= {"at_instant": at_instant or None, "lasts_s": None if until is None else _rest_s(until)}
    hold = ReaderHold(table_id, ManagerClient(manager_url, token, trust))
    try:
        hold.begin(body, ttl_s, wait_s)
    except TableUnknownError as error:
        raise TableUnknownError(f"table {table} is not in the registry, or not below the token's roots") from error
    try:
        yield hold
        hold.require_held()
    finally:
        hold.release()


def id_of(table: str | PurePath) -> str:
    """Return a table's id by its base path, or the id itself. Raises what `normalise_base_path` does."""
    text = str(table)
    return table_id_of(normalise_base_path(text)) if "/" in text else text


def _rest_s(until: datetime) -> float:
    if until.tzinfo is None:
        raise ConfigError(f"until is {until}, without a time zone: give one, as datetime.now(UTC) + timedelta(hours=2)")
    rest_s = (until - datetime.now(UTC)).total_seconds()
    if rest_s <= 0:
        raise ConfigError(f"until is {until}, which is over")
    return rest_s


def _name() -> str:
    with suppress(KeyError, OSError):
        return f"{getpass.getuser()}@{socket.gethostname()}, process {os.getpid()}"
    return f"process {os.getpid()}"
