"""A timeline server alone: `python -m tests.integration.timeline_server.serve ROOT PORT TOKEN`."""

from __future__ import annotations

import sys

import uvicorn

from airflow_lake_provider.view.server_app import create_timeline_app
from airflow_lake_provider.view.shared_timelines import SharedTimelines
from airflow_lake_provider.view.timeline_server import ServerOptions, TimelineServer

if __name__ == "__main__":
    root, port, token = sys.argv[1:4]
    server = TimelineServer(SharedTimelines(), ServerOptions((root,), (token,)))
    uvicorn.run(create_timeline_app(lambda: server), host="127.0.0.1", port=int(port), log_level="warning")
