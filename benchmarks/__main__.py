"""`python -m benchmarks`: measure, and print ratios to the official saver (below 1 is faster)."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from servers import postgres_server

from benchmarks.cases import Samples, conversation
from benchmarks.contestants import contestants


def ratio(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """The ratio of medians, and its spread over ten slices of the run."""
    slices = [
        statistics.median(ours[i::10]) / statistics.median(theirs[i::10])
        for i in range(min(10, len(ours)))
    ]
    return {
        "ratio": statistics.median(ours) / statistics.median(theirs),
        "low": min(slices),
        "high": max(slices),
        "ours_ms": statistics.median(ours) * 1000,
        "official_ms": statistics.median(theirs) * 1000,
    }


def measure(database: str, server: Any, steps: int) -> dict[str, Any]:
    """One conversation of `steps` on one database."""
    with contestants(database, server) as pair:
        savers = {contestant.name: contestant.saver for contestant in pair}
        samples: dict[str, Samples] = conversation(steps, max(1, steps // 50), savers)
        stored = {contestant.name: contestant.bytes_stored() for contestant in pair}
    rows = {
        operation: ratio(samples["ckpt_orm"][operation], samples["official"][operation])
        for operation in samples["official"]
    }
    rows["bytes stored"] = {"ratio": stored["ckpt_orm"] / stored["official"]}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[6, 50, 500])
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with postgres_server(fsync=True) as server:
        for database in options.databases:
            for steps in options.steps:
                rows = measure(database, server, steps)
                found[f"{database}, {steps} steps"] = rows
                print(f"\n{database}, {steps} steps")
                for operation, row in rows.items():
                    spread = f"  {row['low']:.2f}-{row['high']:.2f}" if "low" in row else ""
                    times = (
                        f"  {row['ours_ms']:8.2f} ms {row['official_ms']:8.2f} ms"
                        if "ours_ms" in row
                        else ""
                    )
                    print(f"  {operation:16} {row['ratio']:6.3f}{spread:12}{times}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
