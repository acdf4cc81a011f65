"""The results as Markdown: a table for each database, and the plots beside it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.results import Results, Row
from benchmarks.sampling import FLOOR, OFFICIAL, OURS, Figure
from benchmarks.targets import verdict

#: Between these lines of a page stands what was measured; the rest of the page is written by hand.
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

NAMES = {"postgres": "Postgres", "sqlite": "SQLite"}

HEAD = """\
| case | what | colour | ckpt_orm | official | floor | ratio | quartiles | target |
|---|---|---|---|---|---|---|---|---|"""


def markdown(results: Results, plots: Iterable[tuple[str, str]] = ()) -> str:
    """The section: with what it was measured, the plots as (title, address), and the tables."""
    parts = [_about(results), *(f"![{title}]({address})" for title, address in plots)]
    for database, name in NAMES.items():
        rows = [row for row in results.rows if row.database == database]
        rows.sort(key=lambda row: row.case)
        if rows:
            parts += [f"### {name}", "\n".join([HEAD, *(_line(row) for row in rows)])]
    return "\n\n".join(parts) + "\n"


def into_page(page: Path, results: Results) -> None:
    """Put the section into a page, between its two marks, and the plots into a folder beside it.

    Raises:
        ValueError: where the page has not both marks.
    """
    from benchmarks.plots import draw

    text = page.read_text()
    if BEGIN not in text or END not in text:
        raise ValueError(f"{page} needs the lines {BEGIN} and {END}: the results go between them")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    folder = page.with_suffix("")
    plots = [(title, f"{folder.name}/{path.name}") for title, path in draw(results, folder)]
    page.write_text(f"{before}{BEGIN}\n\n{markdown(results, plots)}\n{END}{after}")


def reached(results: Results) -> tuple[int, int]:
    """How many targets were reached, and how many were judged."""
    verdicts = [found for row in results.rows if (found := verdict(row))]
    return sum(found.reached for found in verdicts), len(verdicts)


def _about(results: Results) -> str:
    about = results.about
    packages = ", ".join(f"{name} {release}" for name, release in about["packages"].items())
    machine = f"Python {about['python']}, {about['system']}, {about['cores']} cores"
    ours = ", ".join(f"{key}={value}" for key, value in about.get("ours", {}).items())
    given = f" Our saver was given {ours}." if ours else ""
    good, judged = reached(results)
    note = f"**{about['note']}** " if about.get("note") else ""
    return f"{note}{good} of {judged} targets reached. {machine}; {packages}.{given}"


def _line(row: Row) -> str:
    return f"| {' | '.join(cells(row))} |"


def cells(row: Row) -> list[str]:
    """A row's place in the table, in the order of its head."""
    figures = [_figure(row.figures.get(name), row.unit) for name in (OURS, OFFICIAL, FLOOR)]
    quartiles = "{:.2f}-{:.2f}".format(*row.spread) if row.spread else ""
    found = str(verdict(row) or "")
    return [row.case, row.what, row.colour, *figures, f"{row.ratio:.3g}", quartiles, found]


def _figure(figure: Figure | None, unit: str) -> str:
    if figure is None:
        return ""
    if unit == "bytes":
        return f"{figure.median / 1e6:.2f} MB"
    tail = f" (p95 {_number(figure.p95)})" if figure.count > 1 else ""
    return f"{_number(figure.median)} {unit}".rstrip() + tail


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
