"""Answers notices before Airflow's own middlewares see them.

What those do is for Airflow's users and its web page: cookies, packed answers, cross-site requests, a line of the
access log. It costs more than half of the API server's time for a notice, whose token, limits and body the manager's
app checks by itself. Airflow places a plugin's middlewares innermost, so this one wraps the whole chain when the server
starts.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.routing import Match, Mount

from airflow_lake_provider.http import MOUNT_PATH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.middleware import Middleware
    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)

NOTICE_PATHS = (f"{MOUNT_PATH}/callback", f"{MOUNT_PATH}/service/")
"""A path that ends with a slash stands for all below it."""
PASSED_PACKAGES = frozenset({"airflow", "starlette", "fastapi", "airflow_lake_provider"})
"""Whose middlewares a notice need not pass. Another plugin's may refuse callers, for example by their address."""


class NoticesFirst:
    """Root middleware that passes everything on, and has `AnswersNotices` wrap the chain when the server starts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on."""
        if scope["type"] == "lifespan" and isinstance(scope.get("app"), Starlette):
            wrap_chain(scope["app"])
        await self._app(scope, receive, send)


class AnswersNotices:
    """ASGI app around Airflow's whole chain: a notice goes straight to the manager's app, at the place of its mount."""

    def __init__(self, chain: ASGIApp, mount: Mount) -> None:
        self._chain = chain
        self._mount = mount

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a notice, pass on everything else."""
        if scope["type"] == "http" and _is_notice(scope):
            match, child_scope = self._mount.matches(scope)
            if match is Match.FULL:
                scope.update(child_scope)
                await self._mount.handle(scope, receive, send)
                return
        await self._chain(scope, receive, send)


def wrap_chain(root: Starlette) -> bool:
    """Have notices answered before the app's middlewares; false, and nothing changed, where they must pass one."""
    mount = next((route for route in root.routes if isinstance(route, Mount) and route.path == MOUNT_PATH), None)
    chain = root.middleware_stack
    if mount is None or chain is None or isinstance(chain, AnswersNotices):
        return False
    if foreign := find_foreign(root.user_middleware):
        log.info("notices pass all middlewares of the API server, because of %s: each costs more time", foreign)
        return False
    root.middleware_stack = AnswersNotices(chain, mount)
    return True


def find_foreign(middlewares: Iterable[Middleware]) -> str:
    """Return the first middleware that is neither Airflow's nor the provider's; "" when there is none."""
    for middleware in middlewares:
        module = str(getattr(middleware.cls, "__module__", ""))
        if module.partition(".")[0] not in PASSED_PACKAGES:
            return f"{module}.{getattr(middleware.cls, '__name__', middleware.cls)}"
    return ""


def _is_notice(scope: Scope) -> bool:
    path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")).rstrip("/"))
    return any(path.startswith(one) if one.endswith("/") else path == one for one in NOTICE_PATHS)
