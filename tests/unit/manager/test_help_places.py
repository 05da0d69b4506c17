"""Each problem of a table leads to a place that the documentation has."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lake_provider.config.policies import StuckKind
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.manager.health.health import FoundBy, Problem, TableState
from airflow_lake_provider.manager.reports.help_places import help_address, help_place
from tools.links import list_anchors

DOCS = Path(__file__).parents[3] / "docs"
PROBLEMS = [
    *((source, "", state) for source in FoundBy if source is not FoundBy.DOCTOR for state in TableState),
    *((FoundBy.DOCTOR, f"{kind.value} 20261121120007000", TableState.STUCK) for kind in StuckKind),
]


def test_each_problem_leads_to_a_heading_or_a_marked_row() -> None:
    for source, subject, state in PROBLEMS:
        page, _, anchor = help_place(Problem(state, source, subject, "", "", 0)).partition("#")
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        assert anchor in list_anchors(text) or f'<a id="{anchor}"></a>' in text, (source, subject)


@pytest.mark.parametrize(
    ("docs_url", "address"),
    [
        ("", "docs/doctor.md#lost_files"),
        ("https://docs.example.org/lake/{page}/", "https://docs.example.org/lake/doctor/#lost_files"),
    ],
)
def test_place_is_an_address_where_the_documentation_is_served(docs_url: str, address: str) -> None:
    assert help_address("doctor#lost_files", docs_url) == address


@pytest.mark.parametrize("docs_url", ["https://docs.example.org/lake/", "javascript:alert(1)//{page}"])
def test_address_that_is_no_page_is_refused(docs_url: str) -> None:
    with pytest.raises(ConfigError, match=r"\[lake\] docs_url = .*allowed: an http address with"):
        LakeSettings.from_options({"docs_url": docs_url})
