"""What `test_weather` runs in processes of its own: puts, and puts that are killed.

    python putting.py many URL THREAD COUNT     puts, then ends
    python putting.py rounds URL                for each line of input, a process that puts for ever

A process of `rounds` tells its pid first, then each id as soon as its put has returned. It is
forked, since starting Python with LangGraph takes longer than all the puts before it is killed.
"""

from __future__ import annotations

import os
import sys
from itertools import count

from builders import checkpoint, config, version
from sqlalchemy import create_engine

from ckpt_orm import SQLAlchemySaver

CHANNELS = ("a", "b", "c")


def put_one(saver: SQLAlchemySaver, thread: str, number: int) -> str:
    """A checkpoint with three blobs; its id."""
    values = {channel: [channel, number] * 200 for channel in CHANNELS}
    found = checkpoint(values, {channel: version() for channel in CHANNELS})
    saver.put(config(thread), found, {"number": number}, found["channel_versions"])
    return found["id"]


def many(url: str, thread: str, count: str) -> None:
    """Puts on an engine of the saver's, or an application's own one where the thread says so."""
    own = thread.startswith("own")
    saver = SQLAlchemySaver(create_engine(url)) if own else SQLAlchemySaver.from_url(url)
    for number in range(int(count)):
        put_one(saver, thread, number)


def rounds(url: str) -> None:
    """A forked process for each line of input, until it is killed."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            print(os.getpid(), flush=True)
            saver = SQLAlchemySaver.from_url(url)
            for number in count():
                print(put_one(saver, line.strip(), number), flush=True)
        os.waitpid(pid, 0)
        print("\nover", flush=True)  # behind a line of which only a part may be written


if __name__ == "__main__":
    {"many": many, "rounds": rounds}[sys.argv[1]](*sys.argv[2:])
