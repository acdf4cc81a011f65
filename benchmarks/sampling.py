"""How samples are taken and summed up.

A round calls each contestant once, in random order, so that what else the machine does falls on all
of them. The ratio is that of the medians; its spread is the interquartile range of the rounds' own
ratios.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

OURS, OFFICIAL, FLOOR = "ckpt_orm", "official", "floor"

#: What each contestant needed in each round, by contestant.
Samples = dict[str, list[float]]


@dataclass(frozen=True)
class Figure:
    """What one contestant needed: the median and the 95th percentile of so many samples."""

    median: float
    p95: float
    count: int


def figure(samples: Sequence[float], factor: float = 1.0) -> Figure:
    """The samples summed up, in a unit that is `factor` of theirs."""
    ordered = sorted(samples)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    return Figure(statistics.median(ordered) * factor, p95 * factor, len(ordered))


def ratio(samples: Samples) -> float:
    """Our median to the official saver's: below 1, ours is faster."""
    return statistics.median(samples[OURS]) / statistics.median(samples[OFFICIAL])


def spread(samples: Samples) -> tuple[float, float] | None:
    """The quartiles of the rounds' ratios, or None for fewer than four rounds."""
    ratios = [ours / theirs for ours, theirs in zip(samples[OURS], samples[OFFICIAL], strict=True)]
    if len(ratios) < 4:
        return None
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, high


class Rounds:
    """Rounds of calls, each in another random order, the same orders for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def once(self, calls: Mapping[str, Callable[[], float]], into: Samples) -> None:
        """One round: each call once, what it returned noted under its name."""
        for name in self._random.sample(list(calls), len(calls)):
            into.setdefault(name, []).append(calls[name]())

    def take(
        self, calls: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 2
    ) -> Samples:
        """The samples of so many rounds, after some that are not counted."""
        for _ in range(warm_up):
            self.once(calls, {})
        samples: Samples = {}
        for _ in range(rounds):
            self.once(calls, samples)
        return samples
