"""What is to be reached, in one table. A target that is missed is reported; it fails nothing."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from benchmarks.results import Row
from benchmarks.sampling import OURS


@dataclass(frozen=True)
class Target:
    """A limit for what some rows say of our saver.

    Attributes:
        case, what, colour: the rows it is for, as patterns.
        postgres, sqlite: the limit on each database, or None where there is none.
        bound: "≤" or "≥".
        own: whether our own figure is judged, rather than the ratio to the official saver's.
    """

    case: str
    what: str
    colour: str
    postgres: float | None
    sqlite: float | None
    bound: str = "≤"
    own: bool = False

    def is_for(self, row: Row) -> bool:
        """Whether it says something about a row."""
        pairs = ((row.case, self.case), (row.what, self.what), (row.colour, self.colour))
        return all(fnmatchcase(found, pattern) for found, pattern in pairs)


#: Bytes per step that "stay constant" may differ by this much: pages are allotted in lumps.
CONSTANT = 1.1

TARGETS = [
    #      case  what                                            colour   postgres  sqlite
    Target("W1", "put, 6 messages", "sync", 1.0, 1.0),
    Target("W1", "put, 500 steps", "sync", 0.30, 0.75),
    Target("W1", "put, last 20 % of 500 steps", "sync", 0.25, 0.70),
    Target("W1", "bytes stored, 500 steps", "sync", 0.03, 0.02),
    Target("W1", "growth of bytes per step, 500 to 2,000*", "sync", CONSTANT, CONSTANT, own=True),
    Target("W2", "put_writes(3)", "sync", 1.05, 1.1),
    Target("W3", "get_tuple, small", "sync", 1.0, 1.05),
    Target("W3", "get_tuple, 500 steps", "sync", 0.80, 1.05),
    Target("W4", "list(20), 500 steps", "sync", 0.80, 0.85),
    Target("W5", "agent loop*", "sync", 0.65, 1.0),
    Target("W5", "agent loop*", "async", 0.70, 0.9),
    Target("W6", "16 callers at once", "sync", 2.5, 1.4, bound="≥"),
    Target("W6", "16 callers at once", "async", 4.0, 1.7, bound="≥"),
    Target("W7", "newly stored, edit in the middle", "sync", 3.0, 3.0, own=True),
    Target("W8", "*, round trips", "*", 1.0, None, own=True),
]


@dataclass(frozen=True)
class Verdict:
    """A target's limit for a row, and whether the row keeps it."""

    target: Target
    limit: float
    reached: bool

    def __str__(self) -> str:
        whose = " of ours" if self.target.own else ""
        said = "reached" if self.reached else "missed"
        return f"{self.target.bound} {self.limit:g}{whose} {said}"


def verdict(row: Row) -> Verdict | None:
    """What the targets say of a row, or None where none is for it."""
    target = next((target for target in TARGETS if target.is_for(row)), None)
    if target is None:
        return None
    limit = target.postgres if row.database == "postgres" else target.sqlite
    if limit is None:
        return None
    found = row.figures[OURS].median if target.own else row.ratio
    return Verdict(target, limit, found <= limit if target.bound == "≤" else found >= limit)
