"""Write the generated part of `docs/benchmarks.md`, and its plots, from the recorded full forms.

    python -m benchmarks.report            # text and plots (make bench-report; needs matplotlib)
    python -m benchmarks.report --check    # compare the text and that each plot is there; draws nothing (make check)

A benchmark without a file in `benchmarks/results/` is "not recorded"; no number comes from anywhere else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from math import log
from pathlib import Path
from statistics import linear_regression
from typing import Any

from benchmarks.aims import aims_of, find_figure
from benchmarks.sections import SECTIONS, Growth, Plot, Scatter, Section

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PLOTS = ROOT / "docs" / "benchmarks"
PROVIDER = "provider, "
"""How the label of a figure of the provider's begins, where it has several."""
BEGIN, END = "<!-- begin: `make bench-report` writes this part -->", "<!-- end of the written part -->"


def load_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the recorded full forms by benchmark."""
    found = {}
    for section in SECTIONS:
        path = folder / f"{section.benchmark}.json"
        if path.exists():
            found[section.benchmark] = json.loads(path.read_text(encoding="utf-8"))
    return found


def find_recorded(results: dict[str, dict[str, Any]]) -> list[Section]:
    """Return the sections of the page that have a result."""
    return [section for section in SECTIONS if section.benchmark in results]


def points_of(scatter: Scatter, result: dict[str, Any]) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return each series' label with its runs' (actual, predicted) figures above zero."""
    found = []
    for label, key in scatter.series:
        service, _, name = key.partition(".")
        runs = result.get(service, {}).get(name, [])
        pairs = [(float(run[scatter.actual]), float(run[scatter.predicted])) for run in runs]
        found.append((label, [pair for pair in pairs if min(pair) > 0]))
    return found


def measured(plot: Plot, result: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the labels and values of a plot that the run has measured."""
    return [(label, value) for label, key in plot.bars if (value := find_figure(result, key)) is not None]


def render(results: dict[str, dict[str, Any]]) -> str:
    """Return the generated part of the page."""
    usual = tuple(
        Counter(values).most_common(1)[0][0]
        for values in zip(*(_origin_of(entry) for entry in results.values()), strict=True)
    )
    head = [f"Unless another one is named: {', '.join(usual)}."] if usual else []
    parts = [part for section in SECTIONS for part in _render(section, results.get(section.benchmark), usual)]
    return "\n\n".join([*head, *parts])


def _origin_of(entry: dict[str, Any]) -> tuple[str, str]:
    """Return what was measured, and where."""
    return f"commit {entry['commit']} of {entry['date']}", str(entry["machine"])


def _render(section: Section, entry: dict[str, Any] | None, usual: tuple[str, ...]) -> list[str]:
    if entry is None:
        return [f"### {section.benchmark}", section.question, "Not recorded."]
    result = entry["result"]
    arguments = [f"`{' '.join(entry['arguments'])}`"] if entry["arguments"] else []
    others = [own for own, common in zip(_origin_of(entry), usual, strict=True) if own != common]
    named = ", ".join([*others, *arguments])
    head = [f"### {section.benchmark}", section.question, *([f"{named[:1].upper()}{named[1:]}."] if named else [])]
    pictures = [_picture(plot, result) for plot in section.plots if measured(plot, result)]
    pictures += [
        f"![{scatter.unit} predicted and actual, a point for each run; in the band wrong by at most {scatter.bar:.0%}]"
        f"(benchmarks/{scatter.name}.svg)"
        for scatter in section.scatters
    ]
    pictures += [_picture_of_growth(growth, result) for growth in section.growths if costs_of(growth, result)]
    aims = [f"- {aim.describe(result)}" for aim in aims_of(section.benchmark)]
    return [*head, *pictures, *_tables(section, result), *(["Aims:\n\n" + "\n".join(aims)] if aims else [])]


def _picture(plot: Plot, result: dict[str, Any]) -> str:
    """Return a plot; its figures are its text as well."""
    bars = _join([f"{label} {value:,.6g}" for label, value in measured(plot, result)])
    return f"![{plot.axis}: {bars}](benchmarks/{plot.name}.svg)"


def _join(figures: list[str]) -> str:
    """Return figures in one line; that they are all the provider's is said of the first one."""
    if all(figure.startswith(PROVIDER) for figure in figures):
        figures = [*figures[:1], *(figure.removeprefix(PROVIDER) for figure in figures[1:])]
    return "; ".join(figures)


def costs_of(growth: Growth, result: dict[str, Any]) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return each series' label with its (size, cost) figures above zero; a series needs two."""
    found = []
    for label, key in growth.series:
        figures = [(size, find_figure(result, key.format(size))) for size in growth.sizes]
        pairs = [(float(size), cost) for size, cost in figures if cost]
        if len(pairs) > 1:
            found.append((label, pairs))
    return found


def power_of(pairs: list[tuple[float, float]]) -> float:
    """Return the power of the size by which a cost grows: the slope of the line through the logarithms."""
    return linear_regression(*zip(*((log(size), log(cost)) for size, cost in pairs), strict=True)).slope


def _picture_of_growth(growth: Growth, result: dict[str, Any]) -> str:
    """Return a plot of growth; the powers are its text."""
    powers = _join([f"{label}, power {power_of(pairs):.2f}" for label, pairs in costs_of(growth, result)])
    return f"![{growth.axis} against {growth.size}: {powers}](benchmarks/{growth.name}.svg)"


def _tables(section: Section, result: dict[str, Any]) -> list[str]:
    grids = [
        (
            grid.case,
            [label for label, _ in grid.figures],
            [(label, [find_figure(result, f"{case}.{key}") for _, key in grid.figures]) for label, case in grid.cases],
        )
        for grid in section.grids
    ]
    # Many figures of few cases are read downwards.
    turned = [
        (
            case,
            [label for label, _ in rows],
            [(name, [values[n] for _, values in rows]) for n, name in enumerate(names)],
        )
        if len(names) > len(rows)
        else (case, names, rows)
        for case, names, rows in grids
    ]
    # The aim of a figure shows it.
    aimed = {aim.key for aim in aims_of(section.benchmark) if not aim.peer}
    counts = [(label, [find_figure(result, key)]) for label, key in section.counts if key not in aimed]
    found = [_table(*each) for each in turned]
    if any(value is not None for _, (value,) in counts):
        found.insert(0, _table("figure", ["value"], counts))
    return [table for table in found if table]


def _table(corner: str, names: list[str], rows: list[tuple[str, list[float | None]]]) -> str:
    """Return a table without the rows and columns that the run has not measured."""
    kept = [number for number in range(len(names)) if any(values[number] is not None for _, values in rows)]
    lines = [f"| {corner} | {' | '.join(names[number] for number in kept)} |", "| --- " * (len(kept) + 1) + "|"]
    for label, values in rows:
        if any(values[number] is not None for number in kept):
            cells = ["" if values[n] is None else f"{values[n]:,.6g}" for n in kept]
            lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def start_drawing(name: str) -> Any:
    """Return matplotlib's pyplot, set so that the same figures give the same file, byte by byte."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10})
    from matplotlib import pyplot

    return pyplot


def draw_scatter(scatter: Scatter, series: list[tuple[str, list[tuple[float, float]]]], path: Path) -> None:
    """Draw predicted against actual figures."""
    pyplot = start_drawing(scatter.name)
    from matplotlib import ticker

    figure, axes = pyplot.subplots(figsize=(5.5, 4.5), layout="constrained")
    every = [value for _, pairs in series for pair in pairs for value in pair] or [1.0]
    ends = [min(every) / 1.3, max(every) * 1.3]
    axes.fill_between(
        ends, [end * (1 - scatter.bar) for end in ends], [end * (1 + scatter.bar) for end in ends], color="#e8eaf6"
    )
    axes.plot(ends, ends, color="#9aa0a6", linewidth=1)
    for (label, pairs), (color, marker) in zip(series, (("#4051b5", "o"), ("#00897b", "^")), strict=True):
        axes.scatter([actual for actual, _ in pairs], [predicted for _, predicted in pairs], s=16, color=color,
                     marker=marker, label=label, alpha=0.7)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 3.0)))
        axis.set_major_formatter(lambda value, _: f"{value:,.3g}")
        axis.set_minor_locator(ticker.NullLocator())
    axes.set(xlabel=f"actual {scatter.unit}", ylabel=f"predicted {scatter.unit}")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def draw_growth(growth: Growth, series: list[tuple[str, list[tuple[float, float]]]], path: Path) -> None:
    """Draw costs against sizes."""
    pyplot = start_drawing(growth.name)
    figure, axes = pyplot.subplots(figsize=(5.5, 3.5), layout="constrained")
    colors = iter(("#4051b5", "#00897b"))
    for label, pairs in series:
        color = next(colors) if label.startswith("provider") else "#9aa0a6"
        shown = f"{label}: power {power_of(pairs):.2f}"
        axes.plot([size for size, _ in pairs], [cost for _, cost in pairs], marker="o", color=color, label=shown)
    axes.set(xscale="log", yscale="log", xlabel=growth.size, ylabel=growth.axis)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def limits_of(section: Section, plot: Plot) -> list[float]:
    """Return the bounds of the aims that a bar of the plot is measured by."""
    keys = {key for _, key in plot.bars}
    return sorted({aim.bound for aim in aims_of(section.benchmark) if not aim.peer and aim.key in keys and aim.bound})


def draw(plot: Plot, bars: list[tuple[str, float]], limits: list[float], path: Path) -> None:
    """Draw one bar chart, with a line at each aim."""
    pyplot = start_drawing(plot.name)
    labels, values = [label for label, _ in bars], [value for _, value in bars]
    figure, axes = pyplot.subplots(figsize=(7.5, 0.9 + 0.38 * len(bars)), layout="constrained")
    drawn = axes.barh(
        labels, values, color=["#4051b5" if label.startswith("provider") else "#9aa0a6" for label in labels]
    )
    axes.bar_label(drawn, labels=[f"{value:,.4g}" for value in values], padding=4)
    axes.invert_yaxis()
    axes.set_xlim(0, max([*values, *limits, 1e-9]) * 1.18)
    for limit in limits:
        axes.axvline(limit, color="#c62828", linewidth=1, linestyle="--")
    axes.set_xlabel(plot.axis)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def replace_part(page: str, part: str) -> str:
    """Return the page with its generated part replaced. Raises ValueError when the page has no marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{part}\n\n{END}{after}"


def find_stale(results: dict[str, dict[str, Any]], page: Path, plots: Path) -> list[str]:
    """Return what of the page is not what the results say."""
    text = page.read_text(encoding="utf-8")
    stale = [] if replace_part(text, render(results)) == text else [f"{page.name} differs from the recorded results"]
    recorded = find_recorded(results)
    wanted = {
        plot.name
        for section in recorded
        for plot in section.plots
        if measured(plot, results[section.benchmark]["result"])
    }
    wanted |= {scatter.name for section in recorded for scatter in section.scatters}
    wanted |= {
        growth.name
        for section in recorded
        for growth in section.growths
        if costs_of(growth, results[section.benchmark]["result"])
    }
    stale += [f"{name}.svg is missing" for name in sorted(wanted) if not (plots / f"{name}.svg").exists()]
    return stale + [f"{path.name} belongs to no result" for path in plots.glob("*.svg") if path.stem not in wanted]


def main() -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    results = load_results(RESULTS)
    if options.check:
        stale = find_stale(results, PAGE, PLOTS)
        for line in stale:
            print(f"docs/benchmarks: {line}: run `make bench-report` and commit it", file=sys.stderr)
        return 1 if stale else 0
    PAGE.write_text(replace_part(PAGE.read_text(encoding="utf-8"), render(results)), encoding="utf-8")
    for old in PLOTS.glob("*.svg"):
        old.unlink()
    for section in find_recorded(results):
        result = results[section.benchmark]["result"]
        for plot in section.plots:
            if bars := measured(plot, result):
                draw(plot, bars, limits_of(section, plot), PLOTS / f"{plot.name}.svg")
        for growth in section.growths:
            if series := costs_of(growth, result):
                draw_growth(growth, series, PLOTS / f"{growth.name}.svg")
        for scatter in section.scatters:
            draw_scatter(scatter, points_of(scatter, result), PLOTS / f"{scatter.name}.svg")
    print(f"wrote {PAGE.relative_to(ROOT)}: {len(results)} of {len(SECTIONS)} benchmarks are recorded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
