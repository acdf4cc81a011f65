"""`python -m benchmarks.sweep`: a sweep of a large table, and a writer beside it.

The table is filled by SQL with copies of a few threads that were put. Then a writer puts a
checkpoint again and again, first alone, then while the sweep runs; the ratio of the two medians is
what the sweep costs it, and that of the 95th percentiles what it costs at worst.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from servers import execute, postgres_server
from sqlalchemy import URL, create_engine, make_url, text

from benchmarks.conversation import Conversation
from ckpt_orm import Retention, SQLAlchemySaver

#: Checkpoints of a thread.
LENGTH = 50

TABLES = {
    "checkpoints": "checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata",
    "checkpoint_blobs": "checkpoint_ns, channel, version, type, blob, digest",
    "checkpoint_writes": "checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob, "
    "task_path",
}


def fill(saver: SQLAlchemySaver, url: URL, checkpoints: int) -> None:
    """As many checkpoints as asked for, in threads that are all alike."""
    first = Conversation("thread-0", saver)
    for _ in range(LENGTH):
        first.messages.clear()  # what a row holds is not what is measured
        first.put()
        first.put_writes()
    engine = create_engine(url)
    with engine.begin() as conn:
        numbers = (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :threads)"
        )
        for table, columns in TABLES.items():
            copies = (
                f"INSERT INTO {table} (thread_id, {columns}) {numbers} "
                f"SELECT 'thread-' || i, {columns} FROM n, {table} WHERE thread_id = 'thread-0'"
            )
            conn.execute(text(copies), {"threads": checkpoints // LENGTH - 1})
    engine.dispose()
    if url.get_backend_name() == "postgresql":
        execute(url, "VACUUM ANALYZE")


class Writer(threading.Thread):
    """Puts checkpoints of a thread of its own, and notes how long each took."""

    def __init__(self, saver: SQLAlchemySaver, name: str) -> None:
        super().__init__()
        self.line, self.samples = Conversation(name, saver), list[float]()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.005):
            if self.line.step == 20:
                self.line = Conversation(f"{self.line.thread_id}+", self.line.saver)
            self.samples.append(self.line.put())


@contextmanager
def writing(saver: SQLAlchemySaver, name: str) -> Iterator[list[float]]:
    """The samples of a writer that works meanwhile."""
    writer = Writer(saver, name)
    writer.start()
    try:
        yield writer.samples
    finally:
        writer.over.set()
        writer.join()


def measure(url: URL, checkpoints: int, batch: int) -> None:
    with SQLAlchemySaver.from_url(url) as saver, SQLAlchemySaver.from_url(url) as other:
        saver.setup()
        begin = time.perf_counter()
        fill(saver, url, checkpoints)
        print(f"  filled in {time.perf_counter() - begin:.0f} s")
        policy = Retention(keep_last=5, thread_filter="thread-*")
        with writing(other, "alone") as alone:
            time.sleep(5)
        begin = time.perf_counter()
        predicted = saver.sweep(policy, dry_run=True)
        looked = time.perf_counter() - begin
        begin = time.perf_counter()
        with writing(other, "beside") as beside:
            swept = saver.sweep(policy, batch=batch)
        took = time.perf_counter() - begin
        assert swept == predicted
    rows = swept.checkpoints + swept.writes + swept.blobs
    print(f"  dry run    {looked:6.1f} s   {checkpoints / looked:10,.0f} checkpoints a second")
    print(f"  sweep      {took:6.1f} s   {swept.checkpoints / took:10,.0f} checkpoints a second")
    print(f"             {rows / took:21,.0f} rows a second, {swept.bytes / 1e6:,.0f} MB of values")
    print(f"  a put beside it, {len(beside)} of them, to one alone: {_ratios(beside, alone)}")


def _ratios(beside: list[float], alone: list[float]) -> str:
    found: dict[str, Any] = {
        "median": statistics.median,
        "95 %": lambda samples: statistics.quantiles(samples, n=20)[-1],
        "worst": max,
    }
    return ", ".join(
        f"{name} {of(beside) / of(alone):.2f} ({of(alone) * 1e3:.1f} -> {of(beside) * 1e3:.1f} ms)"
        for name, of in found.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--checkpoints", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgres"])
    options = parser.parse_args()
    for database in options.databases:
        print(f"\n{database}, {options.checkpoints:,} checkpoints, batches of {options.batch:,}")
        if database == "sqlite":
            with tempfile.TemporaryDirectory() as folder:
                url = make_url(f"sqlite:///{folder}/sweep.db")
                measure(url, options.checkpoints, options.batch)
            continue
        with postgres_server(fsync=True) as server:
            execute(server, "DROP DATABASE IF EXISTS sweep", "CREATE DATABASE sweep")
            measure(server.set(database="sweep"), options.checkpoints, options.batch)


if __name__ == "__main__":
    main()
