"""Check the health of a service. Exit code 0: healthy, 1: not, with a sentence. Standard library only, to start fast.

python health.py manager URL        the API server's GET /v1/hoodie/health must be JSON with status ok
python health.py timeline URL       the timeline server's GET /v1/hoodie/timeline/health must report healthy; sent with
                                    the first of the service tokens
python health.py scheduler URL      the API server's GET /api/v2/monitor/health must report it healthy; the same of
                                    triggerer and dag_processor
python health.py spark-master URL   the master's /json/ must report ALIVE
python health.py http URL           any answer with status 200
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request

TIMEOUT_S = 25
PARTS = ("scheduler", "triggerer", "dag_processor")
"""Airflow's processes without a server of their own: the API server knows their heartbeats."""
WANTED = {"manager": "ok", "timeline": "healthy", "spark-master": "ALIVE", **dict.fromkeys(PARTS, "healthy")}


def answer_of(url: str, token: str = "") -> tuple[int, bytes]:
    """Return status and body of a GET; raises OSError."""
    request = urllib.request.Request(url)
    if token:
        # Not in the request's headers, which a redirect would take along.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    # No proxy of the environment: the address is this container's own.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=TIMEOUT_S) as response:
        return response.status, response.read()


def first_service_token() -> str:
    """Return the first of [lake] service_tokens; empty when there is none."""
    return os.environ.get("AIRFLOW__LAKE__SERVICE_TOKENS", "").split(",")[0].strip()


def find_problem(kind: str, url: str) -> str | None:
    """Return why the service is not healthy; None when it is."""
    try:
        status, body = answer_of(url, first_service_token() if kind == "timeline" else "")
        if status != 200:
            return f"status {status}"
        if kind == "http":
            return None
        # Where the plugin is not loaded, Airflow answers 200 with its own page: that is not JSON.
        answer = json.loads(body)
        reported = (answer[kind] if kind in PARTS else answer).get("status")
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None if reported == WANTED[kind] else f"status is {reported!r}"


def main(arguments: list[str]) -> str | None:
    """Check one service; return the argument of sys.exit: None, or a sentence for stderr and exit code 1."""
    if len(arguments) != 2 or arguments[0] not in {*WANTED, "http"}:
        return __doc__
    problem = find_problem(*arguments)
    return None if problem is None else f"{arguments[1]}: {problem}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
