"""Recording a benchmark's closing line, and the page that is made of the recorded ones."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import record, report

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
    assert text.count("Not recorded.") == len(report.SECTIONS)
    assert "| figure |" not in text


def test_a_recorded_figure_stands_with_commit_date_machine_and_unit() -> None:
    text = report.render({"notice": ENTRY})
    assert "`make bench NAME=notice` with `--seconds 30`: 2026-11-20, commit abc1234, 4 cores; took 61 s." in text
    assert "| SQLite, p50: time to answer a notice (ms) | 8.25 |" in text
    assert "| lost, SQLite | 0 |" in text
    assert "PostgreSQL" not in text  # this run did not measure it
    assert "](benchmarks/notice.svg)" in text


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
    assert [
        plot.axis for section in report.SECTIONS for plot in section.plots if not re.search(r"\(.+\)$", plot.axis)
    ] == []


def test_each_plot_that_is_drawn_shows_its_axis_and_its_labels() -> None:
    for benchmark, entry in report.load_results(report.RESULTS).items():
        (section,) = (one for one in report.SECTIONS if one.benchmark == benchmark)
        for plot in section.plots:
            if bars := report.measured(plot, entry["result"]):
                text = (report.PLOTS / f"{plot.name}.svg").read_text(encoding="utf-8")
                assert [
                    label for label in (plot.axis, *(label for label, _ in bars)) if f">{_escape(label)}<" not in text
                ] == []


def test_scatter_has_a_point_for_each_run_that_has_both_figures() -> None:
    seconds, size = next(section for section in report.SECTIONS if section.benchmark == "prediction").scatters
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


@pytest.mark.parametrize("section", report.SECTIONS, ids=lambda section: section.benchmark)
def test_each_key_of_the_page_is_one_that_its_benchmark_prints(section: report.Section) -> None:
    # The benchmark's words: string literals, and the parts of its f-strings.
    folder = report.ROOT / "benchmarks"
    sources = [path.read_text(encoding="utf-8") for path in sorted(folder.glob(f"{section.benchmark}*.py"))]
    words = "\n".join(
        node.value
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ) + "\n".join(re.findall(r"^    (\w+): ", "\n".join(sources), re.M))
    keys = [key for plot in section.plots for _, key in plot.bars] + [key for _, key in section.counts]
    keys += [key for scatter in section.scatters for _, key in scatter.series]
    for key in keys:
        last = key.rpartition(".")[2]
        stem = re.sub(r"^(.*?)(_p50_s|_p95_s|_cpu_s|_s)$", r"\1", last).replace("_", "[-_]")
        assert re.search(rf"{last}|\b{stem}\b", words), f"benchmarks.{section.benchmark} prints no {key}"


def test_a_run_is_recorded_with_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "run_and_find_result", lambda command: {"command": command[1:]})
    path = record.record("waste", ["--writers", "3"], tmp_path)
    entry = json.loads(path.read_text(encoding="utf-8"))
    assert path.name == "waste.json"
    assert entry["result"] == {"command": ["-m", "benchmarks.waste", "--writers", "3"]}
    assert entry["arguments"] == ["--writers", "3"]
    assert re.fullmatch(r"[0-9a-f]{7,}\+?", entry["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", entry["date"])
    assert "cores" in entry["machine"]


def test_the_closing_line_of_the_output_is_the_result(capfd: pytest.CaptureFixture[str]) -> None:
    lines = "print('{\"a\": 1}'); print('and then'); print('{\"a\": 2}'); print('bye')"
    assert record.run_and_find_result([sys.executable, "-c", lines]) == {"a": 2}
    assert "and then" in capfd.readouterr().out


@pytest.mark.parametrize("code", ["print('no line')", "print('{}'); raise SystemExit(1)"])
def test_a_run_without_a_result_or_with_an_error_is_not_recorded(code: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="nothing is recorded"):
        record.run_and_find_result([sys.executable, "-c", code])
    assert list(tmp_path.iterdir()) == []
