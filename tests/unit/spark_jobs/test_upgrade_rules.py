"""In which steps a table's version changes, and when its timeline is half moved."""

from __future__ import annotations

import pytest

from airflow_lake_provider.errors import ServiceRefusedError
from lake_jobs.services.upgrade_rules import completed_in, find_moved, steps_to, times_of

T = "20261121120001000"


@pytest.mark.parametrize(
    ("present", "target", "steps"),
    [(6, 9, (8, 9)), (6, 8, (8,)), (8, 9, (9,)), (9, 6, (8, 6)), (9, 8, (8,)), (8, 6, (6,)), (9, 9, ())],
)
def test_each_version_on_the_way_is_a_step_of_its_own(present: int, target: int, steps: tuple[int, ...]) -> None:
    assert steps_to(present, target) == steps


@pytest.mark.parametrize(("present", "target"), [(5, 9), (6, 7), (9, 10)])
def test_other_versions_are_refused(present: int, target: int) -> None:
    with pytest.raises(ServiceRefusedError, match="only 6, 8, 9"):
        steps_to(present, target)


def test_instants_are_known_by_their_names() -> None:
    names = [f"{T}.commit", f"{T}_{T}.deltacommit", f"{T}.inflight", f"{T}.clean.requested", "20261121120002.commit"]
    assert times_of(names) == {T, "20261121120002"}
    assert not times_of(["hoodie.properties", "archived", ".aux", f".{T}.commit.crc", "metadata", "timeline"])


def test_completed_instants_of_both_layouts_are_known_by_their_names() -> None:
    names = [f"{T}.commit", f"{T}_{T}.deltacommit", f"{T}.inflight", f"{T}.clean.requested", f"{T}.clean.inflight"]
    assert completed_in(names) == {f"{T}.commit", f"{T}.deltacommit"}


@pytest.mark.parametrize(
    ("version", "old", "new", "is_moved"),
    [
        (6, [f"{T}.commit"], ["history"], False),
        (6, [f"{T}.commit.requested"], [f"{T}_{T}.commit"], True),
        (9, ["hoodie.properties"], [f"{T}_{T}.commit"], False),
        (8, [f"{T}.commit"], [], True),
    ],
)
def test_instants_in_the_other_folder_have_moved(
    version: int, old: list[str], new: list[str], *, is_moved: bool
) -> None:
    assert find_moved(version, old, new) is is_moved
