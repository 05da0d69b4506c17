"""`airflow lake timeline-server`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import uvicorn

from airflow_lake_provider.plugins.lake_plugin import open_timeline_server
from airflow_lake_provider.timeline_server.routes import create_timeline_app

if TYPE_CHECKING:
    from argparse import Namespace


def timeline_server(args: Namespace) -> None:
    """Serve until stopped."""
    open_timeline_server()  # a wrong setting is said now, in one line
    uvicorn.run(create_timeline_app(open_timeline_server), host=args.host, port=args.port, log_level="info")
