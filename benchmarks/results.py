"""What was measured: rows, and what they were measured with, as JSON and back."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.sampling import OFFICIAL, OURS, Figure, Samples, figure, ratio, spread

#: Points of a curve, as (x, y).
Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Row:
    """One thing that was measured on one database, by contestant.

    Attributes:
        case: "W1" to "W8".
        what: what was measured, in words; a target is found by it.
        database: "sqlite" or "postgres".
        colour: "sync" or "async".
        unit: of the figures: "ms", "bytes", "calls/s", "round trips", "times" or "% of the value".
        figures: what each contestant needed.
        ratio: ours to the official saver's. Above 1 is better for "calls/s", below 1 for the rest.
        spread: the quartiles of the ratio over the rounds, where there were rounds.
        curves: how the figure changed along the run, for a plot.
    """

    case: str
    what: str
    database: str
    colour: str
    unit: str
    figures: dict[str, Figure]
    ratio: float
    spread: tuple[float, float] | None = None
    curves: dict[str, Curve] = field(default_factory=dict)


def times(
    case: str,
    what: str,
    database: str,
    samples: Samples,
    colour: str = "sync",
    curves: dict[str, Curve] | None = None,
) -> Row:
    """A row of times, from samples in seconds."""
    figures = {name: figure(taken, 1000) for name, taken in samples.items()}
    return Row(
        case, what, database, colour, "ms", figures, ratio(samples), spread(samples), curves or {}
    )


def counts(
    case: str, what: str, database: str, unit: str, found: dict[str, float], colour: str = "sync"
) -> Row:
    """A row of things that were counted, not timed."""
    figures = {name: Figure(value, value, 1) for name, value in found.items()}
    return Row(case, what, database, colour, unit, figures, found[OURS] / found[OFFICIAL])


@dataclass
class Results:
    """Rows, and what they were measured with."""

    about: dict[str, Any]
    rows: list[Row]

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, *paths: Path) -> Results:
        """One or several files as one; of a row that is in two, the later file's counts."""
        about: dict[str, Any] = {}
        rows: dict[tuple[str, ...], Row] = {}
        for path in paths:
            found = json.loads(path.read_text())
            about |= found["about"]
            for row in found["rows"]:
                read = _row(row)
                rows[read.case, read.what, read.database, read.colour] = read
        return cls(about, list(rows.values()))


def _row(found: dict[str, Any]) -> Row:
    figures = {name: Figure(**value) for name, value in found.pop("figures").items()}
    limits = found.pop("spread")
    return Row(figures=figures, spread=tuple(limits) if limits else None, **found)


def about(**options: Any) -> dict[str, Any]:
    """The machine in general words, the releases measured, and how the run was asked for."""
    packages = (
        "sqlalchemy",
        "psycopg",
        "langgraph",
        "langgraph-checkpoint",
        "langgraph-checkpoint-postgres",
        "langgraph-checkpoint-sqlite",
    )
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "packages": {name: version(name) for name in packages},
        **options,
    }
