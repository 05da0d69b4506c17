from __future__ import annotations

from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.hudi.instant import STATE_RANK, Instant, Layout, is_known_stranger
from airflow_lake_provider.hudi.timeline import build_timeline, extend_timeline
from airflow_lake_provider.instant_clock import format_instant_time
from airflow_lake_provider.shared.actions import COMPARABLE_ACTION, Action, State

times = st.from_regex(r"[0-9]{17}", fullmatch=True)


# So few that states of one instant, and instants of one time, meet.
FEW_TIMES = st.sampled_from(["1", "2", "3"])


@st.composite
def instants(draw: st.DrawFn, layout: Layout, times: st.SearchStrategy[str] = times) -> Instant:
    state = draw(st.sampled_from(State))
    completed = draw(times) if layout is Layout.V2 and state is State.COMPLETED else None
    bare = Instant(draw(times), draw(st.sampled_from(Action)), state, completed, "")
    return Instant(bare.requested_time, bare.action, bare.state, bare.completed_time, layout.file_name(bare))


@given(st.sampled_from(Layout).flatmap(lambda layout: st.tuples(st.just(layout), instants(layout))))
def test_parse_of_a_printed_name_gives_the_instant_back(case: tuple[Layout, Instant]) -> None:
    layout, instant = case
    assert layout.parse_file_name(instant.file_name) == instant


@given(st.text(max_size=60))
def test_parse_of_any_text_never_raises_and_prints_back(name: str) -> None:
    for layout in Layout:
        instant = layout.parse_file_name(name)
        if instant is not None and name != f"{instant.requested_time}.commit.inflight":
            assert layout.file_name(instant) == name


@pytest.mark.parametrize(
    ("layout", "name", "action", "state", "completed"),
    [
        pytest.param(Layout.V2, "1.commit.requested", Action.COMMIT, State.REQUESTED, None, id="v2-requested"),
        pytest.param(
            Layout.V2, "1.inflight", Action.COMMIT, State.INFLIGHT, None, id="v2-commit-inflight-has-no-action"
        ),
        pytest.param(Layout.V2, "1_2.commit", Action.COMMIT, State.COMPLETED, "2", id="v2-completed"),
        pytest.param(Layout.V2, "1.commit", Action.COMMIT, State.COMPLETED, None, id="v2-completed-by-an-old-writer"),
        pytest.param(
            Layout.V1, "1.replacecommit.inflight", Action.REPLACECOMMIT, State.INFLIGHT, None, id="v1-inflight"
        ),
        pytest.param(Layout.V1, "1.deltacommit", Action.DELTACOMMIT, State.COMPLETED, None, id="v1-completed"),
    ],
)
def test_parse_of_known_spellings(
    layout: Layout, name: str, action: Action, state: State, completed: str | None
) -> None:
    assert layout.parse_file_name(name) == Instant("1", action, state, completed, name)


OTHER_NAMES = ["", ".", "commit", "1", "1.", ".commit", "1.unknown", "1_2.commit.requested", "1_.commit", "_2.commit"]
OTHER_NAMES += ["1_2_3.commit", "x.commit", "1x.commit", "\u0661.commit", "1.COMMIT", "1.commit.done", "1..commit"]
OTHER_NAMES += [" 1.commit", "1.commit\n"]


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_parse_of_other_names_is_none(name: str) -> None:
    assert Layout.V2.parse_file_name(name) is None


def test_names_of_layout_two_are_no_names_of_layout_one() -> None:
    assert Layout.V1.parse_file_name("1_2.commit") is None


@pytest.mark.parametrize(
    ("name", "known"),
    [
        pytest.param(".1_2.commit.crc", True, id="checksum"),
        pytest.param("1_2.commit.0b8e4a6e-0d5a-4d43-9b34-1f4a9a2e1c11", True, id="write-not-renamed-yet"),
        pytest.param(".metadata_bloom_filters_20261125165342834", True, id="index-that-a-downgrade-took-out"),
        pytest.param(".metadata_secondary_index_a.b_20261125165342834", True, id="secondary-index-of-a-nested-column"),
        pytest.param(".metadata_20261125165342834", True, id="metadata-table-that-hudi-took-out"),
        pytest.param(".metadata_bloom_filters", False, id="no-time-in-it"),
        pytest.param("1_2.commit.bak", False, id="backup"),
        pytest.param("notes.txt", False, id="notes"),
        pytest.param(".1_2.commit.crc\n", False, id="checksum-and-line-end"),
    ],
)
def test_known_strangers(name: str, *, known: bool) -> None:
    assert is_known_stranger(name) is known


def test_build_timeline_keeps_the_highest_state_and_pairs_services_with_what_they_complete_as() -> None:
    names = [
        "5.compaction.requested",
        "5.compaction.inflight",
        "5_9.commit",
        "6.clustering.requested",
        "7.commit.requested",
    ]
    timeline = build_timeline(Layout.V2, names)
    assert [(i.requested_time, i.action, i.state) for i in timeline.instants] == [
        ("5", Action.COMMIT, State.COMPLETED),
        ("6", Action.CLUSTERING, State.REQUESTED),
        ("7", Action.COMMIT, State.REQUESTED),
    ]


@given(st.sampled_from(Layout).flatmap(lambda layout: st.tuples(
    st.just(layout), st.lists(instants(layout, FEW_TIMES) | instants(Layout.V2, FEW_TIMES), max_size=20)
)))  # fmt: skip
def test_build_timeline_keeps_what_a_search_through_all_names_keeps(case: tuple[Layout, list[Instant]]) -> None:
    layout, made = case
    names = {instant.file_name for instant in made} | {"1_x.commit", "2_.deltacommit", "3_4.clean.requested"}
    highest: dict[tuple[str, Action], Instant] = {}
    for instant in filter(None, map(layout.parse_file_name, sorted(names))):
        key = (instant.requested_time, COMPARABLE_ACTION.get(instant.action, instant.action))
        known = highest.get(key)
        if known is None or STATE_RANK[instant.state] >= STATE_RANK[known.state]:
            highest[key] = instant
    kept = sorted(highest.values(), key=lambda instant: instant.sort_key)
    assert list(build_timeline(layout, names).instants) == kept


def test_build_timeline_reports_unknown_names_and_knows_what_belongs_there() -> None:
    timeline = build_timeline(Layout.V2, ["history", ".1_2.commit.crc", "garbage", "1.unknown", "1_2.commit"])
    assert [problem.file_name for problem in timeline.problems] == ["1.unknown", "garbage"]
    assert len(timeline.instants) == 1


@pytest.mark.parametrize(("layout", "completed"), [(Layout.V1, "1.commit"), (Layout.V2, "1_2.commit")])
def test_build_timeline_reports_what_lies_next_to_a_completed_instant(layout: Layout, completed: str) -> None:
    timeline = build_timeline(layout, ["1.commit.bak", "1.commit.requested", completed])
    assert [problem.file_name for problem in timeline.problems] == ["1.commit.bak"]
    assert [instant.file_name for instant in timeline.instants] == [completed]


@pytest.mark.parametrize(
    ("names", "last"),
    [
        pytest.param(["1_2.commit", "3_4.commit"], "3", id="no-hole"),
        pytest.param(["1_2.commit", "3.commit.requested", "5_6.commit"], "1", id="pending-write"),
        pytest.param(["1_2.commit", "3.clustering.requested", "5_6.commit"], "1", id="pending-plan-is-a-hole-too"),
        pytest.param(["1_2.commit", "3.clean.requested", "5_6.commit"], "5", id="pending-clean-is-none"),
        pytest.param(["1.inflight", "5_6.commit"], None, id="hole-at-the-beginning"),
    ],
)
def test_latest_write_without_holes(names: list[str], last: str | None) -> None:
    found = build_timeline(Layout.V2, names).latest_write_without_holes()
    assert (found.requested_time if found else None) == last


def test_latest_completed_is_by_completion_not_by_request() -> None:
    timeline = build_timeline(Layout.V2, ["1_9.commit", "3_4.commit"])
    latest = timeline.latest_completed()
    assert latest is not None
    assert latest.requested_time == "1"


def test_pending_writes_leave_plans_of_services_out() -> None:
    timeline = build_timeline(
        Layout.V2, ["1.inflight", "2.compaction.requested", "3.deltacommit.requested", "4_5.commit"]
    )
    assert [instant.requested_time for instant in timeline.pending_writes()] == ["1", "3"]


def test_format_instant_time_in_utc() -> None:
    assert format_instant_time(1_795_240_904_078, UTC) == "20261121060144078"


@given(st.lists(instants(Layout.V2, FEW_TIMES), max_size=12), st.data())
def test_extend_timeline_equals_building_it_anew(made: list[Instant], data: st.DataObject) -> None:
    names = sorted({instant.file_name for instant in made} | {"garbage"})
    earlier = frozenset(data.draw(st.sets(st.sampled_from(names))))
    extended = extend_timeline(Layout.V2, build_timeline(Layout.V2, earlier), set(names) - earlier)
    assert extended == build_timeline(Layout.V2, names)
