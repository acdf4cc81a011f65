"""TOGETHER: calls that store at the same time share one transaction.

Who stores while few others do stores alone and at once, and pays for a lock that nobody holds. All
others stand in line, and the next one to lead takes along who stands there: what they have is
executed on one connection, and committed once. Nobody is worse off for it:

    a batch that fails      is rolled back, and each of its calls goes alone
    a put it leaves out     is told so, as one that goes alone is told where a chain has moved
    a call that has waited  for RELIEF leads beside those who take long, where the database lets it
                            for PATIENCE goes alone, whatever holds the leaders up
    a caller who is gone    (cancelled, interrupted) leaves the line; a batch goes on without him

To go alone is to be executed as ever: in one's own thread or task, on a connection of one's own,
retried and told as any call. So a line knows nothing of errors, and nobody who stands in it holds a
connection. What stands in line is idempotent, and returns nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from time import monotonic
from typing import Any, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from ckpt_orm import operations
from ckpt_orm.forks import after_fork
from ckpt_orm.logs import ChainMoved
from ckpt_orm.operations import Operation
from ckpt_orm.rows import PutRows, WriteRows
from ckpt_orm.waiting import to_its_end

R = TypeVar("R")

#: Seconds after which a call that waits to be taken along leads beside those who lead.
RELIEF = 0.01

#: Seconds after which it goes alone.
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
    HAS_MOVED = "its batch left it out: it is told that a chain has moved"
    IS_STORED = "it is over"


# As constants, since Python 3.11 takes several times as long for a member.
WAITS, IS_TAKEN, LEADS, GOES_ALONE, HAS_MOVED, IS_STORED = Role

#: Who has not left the line.
THERE = (LEADS, WAITS)


class Call:
    """A call that stores something.

    Args:
        operation: what stores it.
        arguments: of the operation, the rows that are stored.
    """

    __slots__ = ("operation", "others", "outcome", "role", "rows", "since", "wake")

    def __init__(self, operation: Operation[..., Any], arguments: tuple[Any, ...]) -> None:
        self.operation = operation
        self.rows: PutRows | WriteRows = arguments[0]
        self.role, self.outcome = WAITS, GOES_ALONE
        self.since = monotonic()  # to stand in line is to wait for the database as well
        self.others: Sequence[Call] = ()  # whom it takes along
        self.wake: Callable[[], object] = object

    def tell(self, role: Role) -> None:
        """Let a caller who waits go on. What he was told first stays; he is woken again."""
        if self.role in (WAITS, IS_TAKEN):
            self.role = role
        self.wake()


Batch: TypeAlias = Sequence[Call]


def since(batch: Batch) -> float:
    """Since when all of a batch have been waiting."""
    return max(call.since for call in batch)


def in_order(batch: Batch) -> list[Call]:
    """The same everywhere, so that two batches which share keys wait, and seldom deadlock."""
    return sorted(batch, key=lambda call: call.rows.key)


def rows_of(batch: Batch) -> tuple[list[PutRows], list[WriteRows]] | None:
    """What a batch stores; None where an application's columns make one call unlike another."""
    puts: list[PutRows] = []
    writes: list[WriteRows] = []
    for call in in_order(batch):
        if call.rows.filled:
            return None
        if call.operation is operations.put:
            puts.append(cast("PutRows", call.rows))
        elif call.operation is operations.put_writes:
            writes.append(cast("WriteRows", call.rows))
        else:  # it is done for a tenant
            return None
    return puts, writes


class Line:
    """Who stands in line, and who leads; not for several threads by itself.

    An interrupt may end any of these methods between two steps. So a call in the queue stands there
    only as long as its role is to wait; and `leave`, where all who wait or lead end up, may be done
    again.

    Args:
        leaders: how many may lead at a time.
        relief: how many, where they take long.
    """

    def __init__(self, leaders: int, relief: int) -> None:
        self._leaders, self._relief = leaders, relief
        self._leading: list[Call] = []
        self._is_held_up = False
        self._queue: list[Call] = []

    def enter(self, call: Call) -> None:
        """Lead, or stand in line."""
        if not self._leading or self._has_few():
            self._leading.append(call)
            call.role = LEADS
        elif self._is_held_up:
            call.role = GOES_ALONE
        else:
            self._queue.append(call)

    def _has_few(self) -> bool:
        """Whether so few store that each may do so at once, as on a connection of its own."""
        may_lead = len(self._leading) < self._leaders and not self._queue
        return may_lead and not any(leader.others for leader in self._leading)

    @property
    def has_waiting(self) -> bool:
        """Whether anybody stands in line."""
        return bool(self._queue)

    def _waiting(self) -> list[Call]:
        return [call for call in self._queue if call.role is WAITS]

    def _take_out(self, call: Call) -> None:
        if call in self._queue:
            self._queue.remove(call)

    def relieve(self, call: Call) -> None:
        """Lead beside those who take long: most of that may be the way to the database."""
        if call.role is WAITS and len(self._leading) < self._relief:
            self._leading.append(call)
            call.tell(LEADS)
            self._take_out(call)

    def gather(self, leader: Call) -> None:
        """Take along who stands in line, as far as they fit."""
        others: list[Call] = []
        size = leader.rows.size
        for call in self._waiting()[: MOST_CALLS - 1]:
            size += call.rows.size
            if size > MOST_BYTES:
                break
            others.append(call)
        leader.others = others
        for call in others:
            call.role = IS_TAKEN
        self._queue = self._waiting()

    def give_up(self, call: Call) -> None:
        """Wait no longer. Without effect on who does not: he is told by a leader."""
        if call.role is WAITS:
            # Who leads may be waiting for somebody's lock: until one comes back, nobody else waits.
            self._is_held_up = True
            call.tell(GOES_ALONE)
            self._take_out(call)

    def leave(self, call: Call) -> None:
        """Whatever has happened: wait no longer, or tell the others and let the next one lead."""
        if call.role is WAITS:
            self.give_up(call)
        for other in call.others:
            other.tell(other.outcome)
        if call in self._leading:
            self._is_held_up = False
            at = self._leading.index(call)
            self._leading[at : at + 1] = self._waiting()[:1] if self._queue else ()
        if self._queue:  # whoever leads now, and was not told of it yet, still stands there
            for leader in self._leading:
                leader.tell(LEADS)
            self._queue = self._waiting()
        if call.role is LEADS:
            call.role = call.outcome


class ThreadLine:
    """The line of the threads that store by one sync engine.

    Args:
        leaders: how many transactions store at a time.
        relief: how many, where they take long.
    """

    def __init__(self, leaders: int, relief: int) -> None:
        self._leaders, self._relief = leaders, relief
        self.renew()
        after_fork(self)

    def renew(self) -> None:
        """Begin with nobody in it: a child process has none of its parent's threads."""
        self._lock = threading.Lock()
        self._line = Line(self._leaders, self._relief)

    def run(self, call: Call, alone: Callable[[], R], together: Callable[[Batch], Batch]) -> R:
        """Have a call stored, alone or together with others."""
        turn: threading.Lock | None = None
        try:
            with self._lock:
                self._line.enter(call)
                if call.role is WAITS:
                    turn = threading.Lock()
                    turn.acquire()
                    call.wake = partial(_release, turn)
            # Not by its role: since the lock was left, a leader may have taken it along.
            if turn is not None:
                self._wait(call, turn)
            if call.role is LEADS and self._line.has_waiting:
                with self._lock:
                    self._line.gather(call)
            if call.others:
                with suppress(Exception):
                    batch = [call, *call.others]
                    _conclude(batch, together(batch))
            elif call.role is LEADS:
                alone()
                call.outcome = IS_STORED
        finally:
            try:
                if call.role in THERE:
                    self._leave(call)
            except BaseException:  # an interrupt: those who wait are told nevertheless
                self._leave(call)
                raise
        if call.role is GOES_ALONE:
            return alone()
        end: R = _end_of(call)
        return end

    def _wait(self, call: Call, turn: threading.Lock) -> None:
        for seconds, then in ((RELIEF, self._line.relieve), (PATIENCE, self._line.give_up)):
            if turn.acquire(timeout=seconds):
                return
            with self._lock:
                then(call)
        turn.acquire()

    def _leave(self, call: Call) -> None:
        with self._lock:
            self._line.leave(call)


def _release(turn: threading.Lock) -> None:
    """Wake who waits for a lock, unless he was woken."""
    if turn.locked():
        turn.release()


def _end(turn: asyncio.Future[None]) -> None:
    """The same for a task."""
    if not turn.done():
        turn.set_result(None)


class LoopLine:
    """The line of the tasks of an event loop; as `ThreadLine`."""

    def __init__(self, leaders: int, relief: int) -> None:
        self._line = Line(leaders, relief)

    async def run(
        self,
        call: Call,
        alone: Callable[[], Awaitable[R]],
        together: Callable[[Batch], Awaitable[Batch]],
    ) -> R:
        """Have a call stored, alone or together with others.

        A caller who is cancelled gets his CancelledError once the call is over, or out of the line.
        """
        try:
            self._line.enter(call)
            if call.role is WAITS:
                await self._wait(call)
            if call.role is LEADS:
                await self._lead(call, alone, together)
        finally:
            if call.role in THERE:
                self._line.leave(call)
        if call.role is GOES_ALONE:
            return await alone()
        end: R = _end_of(call)
        return end

    async def _wait(self, call: Call) -> None:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        call.wake = partial(_end, turn)
        timer: asyncio.TimerHandle

        def relieve() -> None:
            nonlocal timer
            self._line.relieve(call)
            timer = loop.call_later(PATIENCE, self._line.give_up, call)

        timer = loop.call_later(RELIEF, relieve)
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
        together: Callable[[Batch], Awaitable[Batch]],
    ) -> None:
        if self._line.has_waiting:
            self._line.gather(call)
        if call.others:
            await to_its_end(self._store(call, together))
        else:
            await alone()
            call.outcome = IS_STORED

    async def _store(self, call: Call, together: Callable[[Batch], Awaitable[Batch]]) -> None:
        with suppress(Exception):
            batch = [call, *call.others]
            _conclude(batch, await together(batch))


def _conclude(batch: Batch, left: Batch) -> None:
    """What has become of a batch, of which some calls were left out."""
    for call in batch:
        call.outcome = HAS_MOVED if call in left else IS_STORED


def _end_of(call: Call) -> Any:
    """What is returned, as by every operation that stores.

    Raises:
        ChainMoved: where a batch has left it out. To go alone it would have to be made anew: what
            the batch has stored of its chains nobody refers to, so it may be gone at any moment.
    """
    if call.role is HAS_MOVED:
        raise ChainMoved


class Lines:
    """The lines of a runner: one of its threads, and one of each event loop.

    Args:
        leaders: how many transactions store at a time what stands in one line.
        relief: how many, where they take long.
    """

    def __init__(self, leaders: int, relief: int) -> None:
        self._make = partial(LoopLine, leaders, relief)
        self.threads = ThreadLine(leaders, relief)
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopLine] = WeakKeyDictionary()

    def here(self) -> LoopLine:
        """The line of the running loop."""
        loop = asyncio.get_running_loop()
        return self._loops.get(loop) or self._loops.setdefault(loop, self._make())
