"""What is worked out once, by whoever asks for it first."""

from __future__ import annotations

import os
import signal
import threading
from itertools import count

from ckpt_orm.once import once

CALLS = count(1)
BEGAN, GOES_ON = threading.Event(), threading.Event()


class Slow:
    @once
    def number(self) -> int:
        """A number."""
        return next(CALLS)

    @once
    def late(self) -> str:
        if threading.current_thread() is not threading.main_thread():
            BEGAN.set()
            GOES_ON.wait()
        return "late"


def test_it_is_worked_out_once_for_each_object() -> None:
    one, other = Slow(), Slow()
    assert one.number == one.number
    assert one.number != other.number
    assert Slow.number.__doc__ == "A number."


def test_a_child_process_does_not_wait_for_a_thread_of_its_parent() -> None:
    thread = threading.Thread(target=lambda: Slow().late)
    thread.start()
    BEGAN.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        os._exit(Slow().late != "late")
    GOES_ON.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
