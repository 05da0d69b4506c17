"""The expressions of the dashboard and of the alerts in the documentation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import yaml

DOCS = Path(__file__).parents[2] / "docs"


def expressions() -> Iterator[tuple[str, str]]:
    rules = yaml.safe_load((DOCS / "monitoring" / "rules.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    dashboard = json.loads((DOCS / "monitoring" / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]
