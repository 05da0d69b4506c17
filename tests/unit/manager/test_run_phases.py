"""Where a run's time went: phases without a gap, which add up to all of it, whatever the clocks say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.manager.db.run_phases import Phase, PhaseKind, Try, phases_of

W, T, P, C = PhaseKind.WAITING, PhaseKind.TRY, PhaseKind.PAUSE, PhaseKind.CLOSING


def test_killed_try_its_pause_and_the_next_try_are_each_a_phase() -> None:
    tries = [Try(2, 108_000, 256_000, "success"), Try(1, 1_000, 106_000, "failed")]
    assert phases_of(0, tries, 256_500) == (
        Phase(W, 0, 1_000),
        Phase(T, 1_000, 106_000, 1, "failed"),
        Phase(P, 106_000, 108_000),
        Phase(T, 108_000, 256_000, 2, "success"),
        Phase(C, 256_000, 256_500),
    )


def test_run_that_goes_on_ends_with_an_open_phase() -> None:
    assert phases_of(5, [], None) == (Phase(W, 5, None),)
    assert phases_of(5, [Try(1, 7, None, "running")], None) == (Phase(W, 5, 7), Phase(T, 7, None, 1, "running"))
    assert phases_of(5, [Try(1, 7, 9, "up_for_retry")], None)[-1] == Phase(P, 9, None)


def test_try_without_an_end_had_ended_when_the_next_one_began() -> None:
    assert phases_of(0, [Try(1, 1, None, "failed"), Try(2, 8, 9, "success")], 9) == (
        Phase(W, 0, 1),
        Phase(T, 1, 8, 1, "failed"),
        Phase(T, 8, 9, 2, "success"),
    )


MOMENT = st.integers(-1000, 1000)


@given(MOMENT, st.lists(st.tuples(MOMENT, st.none() | MOMENT), max_size=5), MOMENT)
def test_phases_of_any_clocks_add_up_to_the_run(
    created_ms: int, spans: list[tuple[int, int | None]], ended_ms: int
) -> None:
    ended_ms = max(ended_ms, created_ms)
    tries = [Try(number, began, ended, "") for number, (began, ended) in enumerate(spans, 1)]
    phases = phases_of(created_ms, tries, ended_ms)
    ends = [phase.ended_ms for phase in phases]
    assert all(end is not None for end in ends)
    assert [phase.began_ms for phase in phases] == [created_ms, *ends[:-1]][: len(phases)]
    assert sum((phase.ended_ms or 0) - phase.began_ms for phase in phases) == ended_ms - created_ms
    assert all((phase.ended_ms or 0) >= phase.began_ms for phase in phases)
    assert [phase.try_number for phase in phases if phase.kind is T] == [one.number for one in tries]
