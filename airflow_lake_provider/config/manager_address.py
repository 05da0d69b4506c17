"""Where the manager is by default: next to Airflow's own API. Standard library only, since `lake` starts with it."""

from __future__ import annotations

from urllib.parse import urlsplit

DEFAULT_URL = "http://localhost:8080"
"""What Airflow itself assumes when neither of its settings says where the API server is."""
EXECUTION_PATH = "/execution"


def find_manager_url(execution_api_url: str, base_url: str) -> str:
    """Return the API server's address by `[core] execution_api_server_url`, else by `[api] base_url`.

    An Airflow below a path (`https://company/airflow`) has the manager below it as well.
    """
    for url, own_path in ((execution_api_url, EXECUTION_PATH), (base_url, "")):
        parts = urlsplit(url.strip())
        if parts.netloc:
            path = parts.path.rstrip("/")
            return f"{parts.scheme}://{parts.netloc}{path.removesuffix(own_path)}"
    return DEFAULT_URL
