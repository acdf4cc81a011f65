"""TOGETHER: calls that store at the same time share one transaction.

Who stores while few others do stores alone and at once, and pays for a lock that nobody holds. All
others stand in line, and the next one to lead takes along who stands there: what they have is
executed on one connection, and committed once. Nobody is worse off for it:

    a batch that fails      is rolled back, and each of its calls goes alone
    a call that has waited  for PATIENCE goes alone, whatever holds the leaders up
    a caller who is gone    (cancelled, interrupted) leaves the line; a batch goes on without him

To go alone is to be executed as ever: in one's own thread or task, on a connection of one's own,
retried and told as any call. So a line knows nothing of errors, and nobody who stands in it holds a
connection. What stands in line is idempotent, and returns nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Any, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from ckpt_orm.forks import after_fork
from ckpt_orm.operations import Operation
from ckpt_orm.rows import PutRows, WriteRows
from ckpt_orm.waiting import to_its_end

R = TypeVar("R")

#: Seconds that a call waits to be taken along.
PATIENCE = 0.25

#: Calls, and bytes of what they store, in one transaction.
MOST_CALLS = 64
MOST_BYTES = 1 << 20


class Role(Enum):
    """What becomes of a call."""

    WAITS = "it stands in line"
    IS_TAKEN = "a leader stores it, and will tell"
    LEADS = "it goes first, and takes others along"
    GOES_ALONE = "it waited long enough, or its batch failed"
    IS_STORED = "it is over"


class Call:
    """A call that stores something.

    Args:
        operation: what stores it.
        arguments: of the operation, the rows that are stored.
    """

    # As most calls stay: they go first, and take nobody along.
    role, outcome = Role.WAITS, Role.GOES_ALONE
    others: Sequence[Call] = ()  # whom it takes along
    wake: Callable[[], object] = object

    def __init__(self, operation: Operation[..., Any], arguments: tuple[Any, ...]) -> None:
        self.operation = operation
        self.rows: PutRows | WriteRows = arguments[0]

    def tell(self, role: Role) -> None:
        """Let a caller who waits go on. What he was told first stays."""
        if self.role in (Role.WAITS, Role.IS_TAKEN):
            self.role = role
            self.wake()


Batch: TypeAlias = Sequence[Call]


def steps_of(batch: Batch, at_once: bool) -> Iterator[tuple[Operation[..., Any], Any]]:
    """What stores a batch, and its argument: an operation for each call, or for those of a kind.

    In one order everywhere: two batches that share keys wait, and seldom deadlock.

    Args:
        batch: the calls.
        at_once: whether one statement can store the rows of several.
    """
    ordered = sorted(batch, key=lambda call: call.rows.key)
    of_a_kind: dict[Operation[..., Any], list[PutRows | WriteRows]] = {}
    for call in ordered:
        together = call.operation.together
        if at_once and together is not None and not call.rows.filled:
            of_a_kind.setdefault(call.operation, []).append(call.rows)
        else:
            yield call.operation, call.rows
    for operation, rows in of_a_kind.items():
        if len(rows) > 1 and operation.together is not None:
            yield replace(operation, function=operation.together), rows
        else:
            yield from ((operation, row) for row in rows)


class Line:
    """Who stands in line, and how many more may lead; not for several threads by itself."""

    def __init__(self, leaders: int) -> None:
        self._free = leaders
        self._is_held_up = False
        self._waiting: deque[Call] = deque()

    def enter(self, call: Call) -> None:
        """Lead, or stand in line."""
        if self._free:
            self._free -= 1
            call.role = Role.LEADS
        elif self._is_held_up:
            call.role = Role.GOES_ALONE
        else:
            self._waiting.append(call)

    @property
    def has_waiting(self) -> bool:
        """Whether anybody stands in line."""
        return bool(self._waiting)

    def gather(self, leader: Call) -> None:
        """Take along who stands in line, as far as they fit."""
        others: list[Call] = []
        leader.others = others
        size = leader.rows.size
        while self._waiting and len(others) < MOST_CALLS - 1:
            size += self._waiting[0].rows.size
            if size > MOST_BYTES:
                break
            others.append(self._waiting.popleft())
            others[-1].role = Role.IS_TAKEN

    def give_up(self, call: Call) -> None:
        """Wait no longer. Without effect on who does not: he is told by a leader."""
        if call.role is Role.WAITS:
            self._waiting.remove(call)
            call.tell(Role.GOES_ALONE)
            # Who leads may be waiting for somebody's lock: until one comes back, nobody else waits.
            self._is_held_up = True

    def leave(self, call: Call) -> None:
        """Whatever has happened: wait no longer, or tell the others and let the next one lead."""
        if call.role is not Role.LEADS:
            self.give_up(call)
            return
        self._is_held_up = False
        for other in call.others:
            other.tell(call.outcome)
        call.role = call.outcome
        if self._waiting:
            self._waiting.popleft().tell(Role.LEADS)
        else:
            self._free += 1


class ThreadLine:
    """The line of the threads that store by one sync engine.

    Args:
        leaders: how many transactions store at a time.
    """

    def __init__(self, leaders: int) -> None:
        self._leaders = leaders
        self.renew()
        after_fork(self)

    def renew(self) -> None:
        """Begin with nobody in it: a child process has none of its parent's threads."""
        self._lock = threading.Lock()
        self._line = Line(self._leaders)

    def run(self, call: Call, alone: Callable[[], R], together: Callable[[Batch], None]) -> R:
        """Have a call stored, alone or together with others."""
        turn: threading.Lock | None = None
        try:
            with self._lock:
                self._line.enter(call)
                if call.role is Role.WAITS:
                    turn = threading.Lock()
                    turn.acquire()
                    call.wake = turn.release
            # Not by its role: since the lock was left, a leader may have taken it along.
            if turn is not None:
                self._wait(call, turn)
            if call.role is Role.LEADS:
                self._lead(call, alone, together)
        finally:
            self._leave(call)
        if call.role is Role.GOES_ALONE:
            return alone()
        return cast("R", None)  # as every operation that stores

    def _wait(self, call: Call, turn: threading.Lock) -> None:
        if not turn.acquire(timeout=PATIENCE):
            with self._lock:
                self._line.give_up(call)
            turn.acquire()

    def _lead(
        self, call: Call, alone: Callable[[], object], together: Callable[[Batch], None]
    ) -> None:
        if self._line.has_waiting:
            with self._lock:
                self._line.gather(call)
        if not call.others:
            alone()
            call.outcome = Role.IS_STORED
            return
        with suppress(Exception):
            together([call, *call.others])
            call.outcome = Role.IS_STORED

    def _leave(self, call: Call) -> None:
        if call.role not in (Role.WAITS, Role.LEADS):
            return
        try:
            with self._lock:
                self._line.leave(call)
        except BaseException:  # an interrupt: those who wait are told nevertheless
            with self._lock:
                self._line.leave(call)
            raise


class LoopLine:
    """The line of the tasks of an event loop; as `ThreadLine`."""

    def __init__(self, leaders: int) -> None:
        self._line = Line(leaders)

    async def run(
        self,
        call: Call,
        alone: Callable[[], Awaitable[R]],
        together: Callable[[Batch], Awaitable[None]],
    ) -> R:
        """Have a call stored, alone or together with others.

        A caller who is cancelled gets his CancelledError once the call is over, or out of the line.
        """
        try:
            self._line.enter(call)
            if call.role is Role.WAITS:
                await self._wait(call)
            if call.role is Role.LEADS:
                await self._lead(call, alone, together)
        finally:
            self._line.leave(call)
        if call.role is Role.GOES_ALONE:
            return await alone()
        return cast("R", None)  # as every operation that stores

    async def _wait(self, call: Call) -> None:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        call.wake = lambda: turn.set_result(None)
        timer = loop.call_later(PATIENCE, self._line.give_up, call)
        try:
            await asyncio.shield(turn)
        except asyncio.CancelledError:
            self._line.give_up(call)
            await to_its_end(turn)
            raise
        finally:
            timer.cancel()

    async def _lead(
        self,
        call: Call,
        alone: Callable[[], Awaitable[object]],
        together: Callable[[Batch], Awaitable[None]],
    ) -> None:
        if self._line.has_waiting:
            self._line.gather(call)
        if call.others:
            await to_its_end(self._store(call, together))
        else:
            await alone()
            call.outcome = Role.IS_STORED

    async def _store(self, call: Call, together: Callable[[Batch], Awaitable[None]]) -> None:
        with suppress(Exception):
            await together([call, *call.others])
            call.outcome = Role.IS_STORED


class Lines:
    """The lines of a runner: one of its threads, and one of each event loop.

    Args:
        leaders: how many transactions store at a time what stands in one line.
    """

    def __init__(self, leaders: int) -> None:
        self._leaders = leaders
        self.threads = ThreadLine(leaders)
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopLine] = WeakKeyDictionary()

    def here(self) -> LoopLine:
        """The line of the running loop."""
        loop = asyncio.get_running_loop()
        return self._loops.get(loop) or self._loops.setdefault(loop, LoopLine(self._leaders))
