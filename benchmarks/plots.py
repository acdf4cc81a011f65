"""The results as pictures: what a put takes along a run, what a thread occupies, and the ratios."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.results import Results, Row
from benchmarks.sampling import FLOOR, OFFICIAL, OURS
from benchmarks.targets import verdict

COLOURS = {OURS: "#1b6ca8", OFFICIAL: "#c8553d", FLOOR: "#8a8a8a"}
NAMES = {"postgres": "Postgres", "sqlite": "SQLite"}

#: Where the axis of the ratios may have numbers.
TICKS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)

#: Small files, the same for the same results.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "ckpt-orm", "font.size": 9}


def draw(results: Results, folder: Path) -> list[tuple[str, Path]]:
    """Draw what the results have rows for; the titles and files, as SVG in the folder."""
    plots: list[tuple[str, str, Callable[[Any, list[Row]], None], list[Row]]] = [
        ("put", "What a put takes along the longest run", _put, _longest(results)),
        ("bytes", "What a thread occupies", _bytes, _about(results, r"bytes stored, [\d,]+ steps")),
        ("ratios", "Ratio to the official saver", _ratios, _judged(results)),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    return [
        (title, _draw(folder / f"{name}.svg", title, panel, rows))
        for name, title, panel, rows in plots
        if rows
    ]


def _draw(path: Path, title: str, panel: Callable[[Any, list[Row]], None], rows: list[Row]) -> Path:
    databases = [name for name in NAMES if any(row.database == name for row in rows)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.6 * len(databases), 3.6), layout="constrained")
        axes = figure.subplots(1, len(databases), squeeze=False)[0]
        for axis, database in zip(axes, databases, strict=True):
            axis.set_title(f"{title}: {NAMES[database]}", fontsize=9)
            panel(axis, [row for row in rows if row.database == database])
        figure.savefig(path, metadata={"Date": None})
    return path


def _about(results: Results, pattern: str) -> list[Row]:
    return [row for row in results.rows if re.fullmatch(pattern, row.what)]


def _longest(results: Results) -> list[Row]:
    """The run with most steps on each database."""
    rows = {row.database: row for row in sorted(results.rows, key=_steps) if row.curves}
    return list(rows.values())


def _steps(row: Row) -> int:
    numbers: list[str] = re.findall(r"([\d,]+) steps", row.what)
    return int(numbers[0].replace(",", "")) if numbers else 0


def _judged(results: Results) -> list[Row]:
    """The rows whose ratio a target is about."""
    rows = [row for row in results.rows if (found := verdict(row)) and not found.target.own]
    return sorted(rows, key=lambda row: row.case)


def _put(axis: Any, rows: list[Row]) -> None:
    for name in [name for name in COLOURS if name in rows[0].curves]:
        axis.plot(*zip(*rows[0].curves[name], strict=True), color=COLOURS[name], label=name)
    axis.set(xlabel="step", ylabel="ms, median", ylim=(0, None))
    axis.legend()


def _bytes(axis: Any, rows: list[Row]) -> None:
    rows = sorted(rows, key=_steps)
    steps = [_steps(row) for row in rows]
    for name in (OURS, OFFICIAL):
        stored = [row.figures[name].median / 1e6 for row in rows]
        axis.plot(steps, stored, "o-", color=COLOURS[name], label=name)
    axis.set(xlabel="steps", ylabel="MB", xscale="log", yscale="log")
    axis.set_xticks(steps, [f"{number:,}" for number in steps])
    axis.minorticks_off()
    axis.legend()


def _ratios(axis: Any, rows: list[Row]) -> None:
    """A bar from 1, where both are equal, to the ratio, and a mark at the limit."""
    verdicts = [found for row in rows if (found := verdict(row))]
    labels = [f"{row.case} {row.what}, {row.colour}" for row in rows]
    colours = [COLOURS[OURS] if found.reached else COLOURS[OFFICIAL] for found in verdicts]
    axis.barh(labels, [row.ratio - 1 for row in rows], left=1, color=colours)
    axis.plot([found.limit for found in verdicts], labels, "|", color="black", markersize=9)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set(xscale="log", xlabel="| the target; blue: reached, red: missed")
    reach = [row.ratio for row in rows] + [found.limit for found in verdicts]
    ticks = [tick for tick in TICKS if min(reach) / 2 <= tick <= max(reach) * 2]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.tick_params(axis="y", labelsize=6)
    axis.invert_yaxis()
