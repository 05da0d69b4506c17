"""A timeline server alone: `python -m tests.integration.timeline_server.serve ROOT PORT TOKEN`."""

from __future__ import annotations

import sys

import uvicorn

from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.routes import create_timeline_app
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer

if __name__ == "__main__":
    root, port, token = sys.argv[1:4]
    server = TimelineServer(SharedTimelines(), ServerOptions((root,), (token,)))
    uvicorn.run(create_timeline_app(lambda: server), host="127.0.0.1", port=int(port), log_level="warning")
