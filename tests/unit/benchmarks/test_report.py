"""Recording a benchmark's closing line, and the page that is made of the recorded ones."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import aims, record, report
from benchmarks import all as every
from benchmarks.sections import SECTIONS, Section

ENTRY = {
    "benchmark": "notice",
    "arguments": ["--seconds", "30"],
    "commit": "abc1234",
    "date": "2026-11-20",
    "machine": "4 cores",
    "took_s": 61,
    "result": {"sqlite": {"p50_ms": 8.25, "p99_ms": 17.0, "lost": 0}},
}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "benchmarks.md"
    path.write_text(f"# Before\n\n{report.BEGIN}\n\nold\n\n{report.END}\n\n## After\n", encoding="utf-8")
    return path


def test_a_benchmark_that_was_not_recorded_has_no_number() -> None:
    text = report.render({})
    assert text.count("Not recorded.") == len(SECTIONS)
    assert "| figure |" not in text


def test_a_recorded_figure_stands_with_commit_date_machine_and_unit() -> None:
    text = report.render({"notice": ENTRY})
    assert "Unless another one is named: commit abc1234 of 2026-11-20, 4 cores." in text
    assert "\n\n`--seconds 30`.\n\n" in text
    assert "![time to answer a notice, p99 (ms): provider, SQLite 17](benchmarks/notice.svg)" in text
    assert "| database | SQLite |\n| --- | --- |\n| p50 (ms) | 8.25 |\n| lost | 0 |\n\n" in text
    assert "| PostgreSQL" not in text  # this run did not measure it
    assert "- PostgreSQL, p99 at 40 a second (ms): at most 20; not measured" in text


def test_another_machine_is_named() -> None:
    other = {**ENTRY, "benchmark": "waste", "machine": "96 cores", "result": {"ours_s": 1.5}}
    text = report.render({"notice": ENTRY, "timeline": {**ENTRY, "benchmark": "timeline"}, "waste": other})
    assert "Unless another one is named: commit abc1234 of 2026-11-20, 4 cores." in text
    assert "\n\n96 cores, `--seconds 30`.\n\n" in text


def test_only_the_part_between_the_marks_is_written(page: Path) -> None:
    text = report.replace_part(page.read_text(encoding="utf-8"), "new")
    assert text == f"# Before\n\n{report.BEGIN}\n\nnew\n\n{report.END}\n\n## After\n"
    with pytest.raises(ValueError, match="lacks the lines"):
        report.replace_part("# Before\n", "new")


def test_a_page_that_is_not_what_the_results_say_is_found(page: Path, tmp_path: Path) -> None:
    results: dict[str, dict[str, Any]] = {"notice": ENTRY}
    assert report.find_stale(results, page, tmp_path) == [
        "benchmarks.md differs from the recorded results",
        "notice.svg is missing",
    ]
    page.write_text(report.replace_part(page.read_text(encoding="utf-8"), report.render(results)), encoding="utf-8")
    (tmp_path / "notice.svg").touch()
    assert report.find_stale(results, page, tmp_path) == []
    (tmp_path / "waste.svg").touch()
    assert report.find_stale(results, page, tmp_path) == ["waste.svg belongs to no result"]


def test_each_axis_names_its_unit() -> None:
    assert [plot.axis for section in SECTIONS for plot in section.plots if not re.search(r"\(.+\)$", plot.axis)] == []


def test_each_plot_that_is_drawn_shows_its_axis_and_its_labels() -> None:
    for benchmark, entry in report.load_results(report.RESULTS).items():
        (section,) = (one for one in SECTIONS if one.benchmark == benchmark)
        for plot in section.plots:
            if bars := report.measured(plot, entry["result"]):
                text = (report.PLOTS / f"{plot.name}.svg").read_text(encoding="utf-8")
                assert [
                    label for label in (plot.axis, *(label for label, _ in bars)) if f">{_escape(label)}<" not in text
                ] == []


def test_scatter_has_a_point_for_each_run_that_has_both_figures() -> None:
    seconds, size = next(section for section in SECTIONS if section.benchmark == "prediction").scatters
    runs = [["small", 1, 2.0, 1.5, 1000.0, 0.0], ["small", 2, 3.0, 3.5, 2000.0, 1900.0]]
    result = {"compaction": {"points": runs}}
    assert report.points_of(seconds, result) == [("compaction", [(2.0, 1.5), (3.0, 3.5)]), ("clean", [])]
    assert report.points_of(size, result) == [("compaction", [(2000.0, 1900.0)]), ("clean", [])]


def test_scatter_of_a_recorded_benchmark_is_on_the_page_and_its_picture_is_asked_for(
    page: Path, tmp_path: Path
) -> None:
    results = {"prediction": {**ENTRY, "result": {"compaction": {"points": [["small", 1, 2.0, 1.5, 9.0, 8.0]]}}}}
    text = report.replace_part(page.read_text(encoding="utf-8"), report.render(results))
    page.write_text(text, encoding="utf-8")
    assert "](benchmarks/prediction-seconds.svg)" in text
    assert report.find_stale(results, page, tmp_path) == [
        "prediction-bytes.svg is missing",
        "prediction-seconds.svg is missing",
    ]


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.benchmark)
def test_each_key_of_the_page_is_one_that_its_benchmark_prints(section: report.Section) -> None:
    # The benchmark's words: string literals, and the parts of its f-strings.
    folder = report.ROOT / "benchmarks"
    sources = [path.read_text(encoding="utf-8") for path in sorted(folder.glob(f"{section.benchmark}*.py"))]
    sources += [
        (folder / f"{name}.py").read_text(encoding="utf-8")
        for name in re.findall(r"^from benchmarks\.(\w+) import", "\n".join(sources), re.M)
    ]
    words = "\n".join(
        node.value
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ) + "\n".join(re.findall(r"^    (\w+): ", "\n".join(sources), re.M))
    keys = [key for plot in section.plots for _, key in plot.bars] + [key for _, key in section.counts]
    keys += [key for scatter in section.scatters for _, key in scatter.series]
    keys += [f"{case}.{key}" for grid in section.grids for _, case in grid.cases for _, key in grid.figures]
    keys += [key for growth in section.growths for _, key in growth.series]
    keys += [key for aim in aims.aims_of(section.benchmark) for key in (aim.key, aim.peer) if key]
    for key in keys:
        last = key.rpartition(".")[2]
        stem = re.sub(r"^(.*?)(_p50_s|_p95_s|_cpu_s|_lost_s|_rows_per_s|_of_copy|_s)$", r"\1", last).replace(
            "_", "[-_]"
        )
        assert re.search(rf"{last}|\b{stem}\b", words), f"benchmarks.{section.benchmark} prints no {key}"


def test_each_aim_is_one_of_a_benchmark_of_the_page() -> None:
    assert {aim.benchmark for aim in aims.AIMS} <= {section.benchmark for section in SECTIONS}


@pytest.mark.parametrize(
    ("aim", "line"),
    [
        (aims.Aim("x", "p99 (ms)", "a.p99_ms", 20), "p99 (ms): at most 20; 26.84, missed"),
        (aims.Aim("x", "p99 (ms)", "a.p99_ms", 30), "p99 (ms): at most 30; 26.84, met"),
        (aims.Aim("x", "rows", "a.rows", 3, "peer", is_least=True), "rows: at least 3; 2.5, missed"),
        (aims.Aim("x", "rows", "a.rows", 2.5, "peer", is_least=True), "rows: at least 2.5; 2.5, met"),
        (aims.Aim("x", "rows", "rows", 9), "rows: at most 9; 64,203, missed"),
        (aims.Aim("x", "rows", "a.rows", 2, "gone"), "rows: at most 2; not measured"),
        (aims.Aim("x", "rows", "gone", 2), "rows: at most 2; not measured"),
        (aims.Aim("x", "p99", "a.p99_ms", 20, reason="Airflow's own"), "p99: at most 20; 26.84, missed: Airflow's own"),
    ],
)
def test_an_aim_stands_next_to_what_was_measured(aim: aims.Aim, line: str) -> None:
    assert aim.describe({"a": {"p99_ms": 26.84, "rows": 25}, "peer": 10, "rows": 64_203}) == line


def test_a_figure_with_an_aim_has_no_line_in_the_table_as_well() -> None:
    text = report.render({"latency": {**ENTRY, "benchmark": "latency", "result": {"start_p95_s": 1.5, "commits": 9}}})
    assert "| figure | value |\n| --- | --- |\n| commits | 9 |\n" in text
    assert "- task started, p95 (s): at most 1; 1.5, missed" in text


def test_an_aim_is_a_line_in_the_plot_of_its_figure() -> None:
    notice = next(section for section in SECTIONS if section.benchmark == "notice")
    assert report.limits_of(notice, notice.plots[0]) == [20]


def test_growth_has_the_power_by_which_a_cost_grows() -> None:
    (growth,) = next(section for section in SECTIONS if section.benchmark == "timeline").growths
    result = {"growth": {"100": {"ours_ms": 2.0}, "1000": {"ours_ms": 20.0}, "10000": {"ours_ms": 200.0}}}
    ((label, pairs),) = report.costs_of(growth, result)  # hudi-rs was not measured
    assert (label, pairs) == ("provider", [(100, 2.0), (1000, 20.0), (10000, 200.0)])
    assert report.power_of(pairs) == pytest.approx(1)
    text = report.render({"timeline": {**ENTRY, "benchmark": "timeline", "result": result}})
    assert "![time to load (ms) against instants: provider, power 1.00](benchmarks/timeline-growth.svg)" in text


def test_what_a_commit_has_recorded_is_not_due_again() -> None:
    short, long = Section("short", "?", ()), Section("long", "?", (), arguments=("--rows", "9"))
    results: dict[str, dict[str, Any]] = {
        "short": {"commit": "abc", "arguments": []},
        "long": {"commit": "abc", "arguments": ["--rows", "1"]},  # a shorter run is no full form
    }
    assert every.find_due((short, long), results, "abc") == [long]
    assert every.find_due((short, long), results, "def") == [short, long]


def test_an_aim_that_is_missed_or_not_measured_is_named() -> None:
    wanted = (aims.Aim("a", "x", "x", 1), aims.Aim("b", "x", "x", 1), aims.Aim("c", "x", "x", 1))
    results = {"a": {"result": {"x": 2}}, "b": {"result": {"x": 1}}}
    assert every.find_missed(wanted, results) == ["a: x: at most 1; 2, missed", "c: x: at most 1; not measured"]


def test_a_benchmark_that_fails_keeps_no_other_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []

    def record_it(benchmark: str, arguments: list[str], _folder: Path) -> None:
        ran.append((benchmark, arguments))
        if benchmark == "bad":
            raise RuntimeError("it ended with 1")

    monkeypatch.setattr(every, "record", record_it)
    due = [Section("bad", "?", ()), Section("good", "?", (), arguments=("--rows", "9"))]
    assert every.record_all(due, tmp_path) == ["bad"]
    assert ran == [("bad", []), ("good", ["--rows", "9"])]
    assert "it ended with 1" in capsys.readouterr().err


def test_nothing_is_recorded_on_a_busy_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "measure_busy_percent", lambda: 40.0)
    monkeypatch.setattr(record, "run_and_find_result", lambda _command: pytest.fail("it ran"))
    with pytest.raises(record.BusyError, match="uses 40 % of this machine's cores"):
        record.record("waste", [], tmp_path)
    with pytest.raises(record.BusyError):
        every.record_all([Section("waste", "?", ())], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_recorded_with_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "measure_busy_percent", lambda: 3.2)
    monkeypatch.setattr(record, "run_and_find_result", lambda command: {"command": command[1:]})
    path = record.record("waste", ["--writers", "3"], tmp_path)
    entry = json.loads(path.read_text(encoding="utf-8"))
    assert path.name == "waste.json"
    assert entry["result"] == {"command": ["-m", "benchmarks.waste", "--writers", "3"]}
    assert entry["arguments"] == ["--writers", "3"]
    assert re.fullmatch(r"[0-9a-f]{7,}\+?", entry["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", entry["date"])
    assert "cores" in entry["machine"]
    assert entry["busy_percent_before"] == 3


def test_the_closing_line_of_the_output_is_the_result(capfd: pytest.CaptureFixture[str]) -> None:
    lines = "print('{\"a\": 1}'); print('and then'); print('{\"a\": 2}'); print('bye')"
    assert record.run_and_find_result([sys.executable, "-c", lines]) == {"a": 2}
    assert "and then" in capfd.readouterr().out


@pytest.mark.parametrize("code", ["print('no line')", "print('{}'); raise SystemExit(1)"])
def test_a_run_without_a_result_or_with_an_error_is_not_recorded(code: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="nothing is recorded"):
        record.run_and_find_result([sys.executable, "-c", code])
    assert list(tmp_path.iterdir()) == []
