"""The comparison of short benchmarks: what counts as a fall, and what a slower machine excuses."""

from __future__ import annotations

import json

import pytest

from benchmarks.short import FORMS, RECORDED, Figure, compare

COUNT = Figure("lost")
RATIO = Figure("ours_ms", "peer_ms")
CPU = Figure("cpu_s", is_cpu=True, noise=0.5)


@pytest.mark.parametrize(
    ("figure", "now", "recorded", "speed", "fell"),
    [
        pytest.param(COUNT, 1.0, 0.0, 1.0, True, id="one-lost-where-none-was"),
        pytest.param(RATIO, 0.52, 0.4, 1.0, False, id="a-ratio-within-a-third"),
        pytest.param(RATIO, 0.54, 0.4, 1.0, True, id="a-ratio-above-a-third"),
        pytest.param(CPU, 1.4, 1.0, 1.0, False, id="cpu-above-a-third-but-within-its-noise"),
        pytest.param(CPU, 60.0, 1.3, 1.0, True, id="cpu-far-above"),
        pytest.param(CPU, 3.0, 1.5, 2.0, False, id="twice-the-cpu-on-a-machine-of-half-the-speed"),
        pytest.param(RATIO, 0.8, 0.4, 2.0, True, id="a-slower-machine-excuses-no-ratio"),
        pytest.param(COUNT, 7.0, None, 1.0, False, id="never-recorded"),
    ],
)
def test_a_fall_is_more_than_a_third_and_more_than_noise(
    figure: Figure, now: float, recorded: float | None, speed: float, *, fell: bool
) -> None:
    line, has_fallen = compare(figure, now, recorded, speed)
    assert has_fallen is fell
    assert ("FELL" in line) is fell


def test_a_figure_is_found_by_its_dotted_key_and_divided_by_its_peer() -> None:
    result = {"push": {"cpu_s": 1.5}, "poll": {"cpu_s": 6.0}}
    assert Figure("push.cpu_s").read(result) == 1.5
    assert Figure("push.cpu_s", "poll.cpu_s").read(result) == 0.25


def test_every_recorded_figure_belongs_to_a_form_of_today_with_the_same_arguments() -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    forms = {form.benchmark: form for form in FORMS}
    assert set(recorded) <= set(forms)  # a new form is recorded when the machine is idle
    for name, entry in recorded.items():
        assert entry["arguments"] == list(forms[name].arguments)
        assert set(entry["figures"]) == {figure.name for figure in forms[name].figures}
