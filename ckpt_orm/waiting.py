"""WAITING: for one's turn on a database, for a thread, and for what is not to be interrupted.

Nothing here belongs to an event loop before it is used on one, and nothing outlives a fork: a child
process would wait for threads that it does not have.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from copy import copy
from functools import lru_cache
from time import monotonic
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from ckpt_orm.engines import GivenEngine, LoopEngines
from ckpt_orm.failures import code_of
from ckpt_orm.forks import after_fork
from ckpt_orm.operations import CHANGE, READ, WRITE, Access

R = TypeVar("R")

_NO_TURN = nullcontext()


class Turns:
    """Callers who take turns, since the database would have them poll: on one SQLite connection.

    Writers of one SQLite file find it locked, and sleep and look again, so that a late one may
    overtake an early one many times. In one process they queue instead. Readers need not, unless
    the engine has a single connection for everybody (a StaticPool). Postgres queues by itself.

    Where another process keeps the file locked, whoever has stood in the queue for as long as the
    first one waited for the file has waited long enough as well: the same failure is theirs. One
    after the other they would wait as many times as they are.
    """

    def __init__(
        self, engine: Engine | None, async_engine: LoopEngines | GivenEngine | None
    ) -> None:
        sqlite = (engine is not None and engine.dialect.name == "sqlite") or (
            async_engine is not None and async_engine.url.get_backend_name() == "sqlite"
        )
        self._needs_turn: tuple[Access, ...] = (WRITE, CHANGE) if sqlite else ()
        if isinstance(engine and engine.pool, StaticPool) or (
            isinstance(async_engine, GivenEngine) and async_engine.is_static
        ):
            self._needs_turn = tuple(Access)
        self.renew()
        after_fork(self)

    def renew(self) -> None:
        """Begin with nobody in it."""
        self._lock = threading.Lock()
        #: The last turn in which the file was locked.
        self.failed = _NEVER
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    def take(self, access: Access) -> Any:
        """A context for a sync caller."""
        return self._lock if access in self._needs_turn else _NO_TURN

    def atake(self, access: Access) -> Any:
        """A context for a caller on the running loop."""
        if access not in self._needs_turn:
            return _NO_TURN
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    def use(self, access: Access, since: float) -> Any:
        """A context within a turn, for which a caller has been waiting since a time.

        Raises:
            DBAPIError: where the file was locked for somebody all that time.
        """
        return _Use(self, since) if access in self._needs_turn else _NO_TURN


#: Seconds that are no wait.
_MOMENT = 0.05

#: The failure of nobody's turn: when it began, and what it is made of.
_NEVER: tuple[float, Any, Any, Any] = (float("-inf"), None, None, None)


class _Use:
    """What happens in a turn; not the lock, which an interrupt would leave taken in Python code."""

    __slots__ = ("_began", "_since", "_turns")

    def __init__(self, turns: Turns, since: float) -> None:
        self._turns, self._since = turns, since

    def __enter__(self) -> None:
        began, kind, statement, orig = self._turns.failed
        if self._since <= began:
            raise kind(statement, None, orig, hide_parameters=True)
        self._began = monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not isinstance(error, DBAPIError) or not code_of(error).startswith("SQLITE_BUSY"):
            return
        # Where nobody waited at all, the next one may find the file free.
        if monotonic() - self._began > _MOMENT:
            # A copy, without the traceback, which would keep all that was to be stored.
            found = self._began, type(error), error.statement, copy(error.orig)
            self._turns.failed = found


async def in_thread(threads: ThreadPoolExecutor, function: Callable[[], R]) -> R:
    """`asyncio.to_thread` that is over when it returns, also where the caller was cancelled.

    In threads of this package: those of the loop are where LangGraph runs synchronous nodes, which
    may all be waiting for what is to be loaded here.
    """
    # A thread cannot be stopped. Left alone it would hold its connection, and might commit
    # after the caller has gone on to do something else.
    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    return await to_its_end(loop.run_in_executor(threads, context.run, function))


#: The threads of each engine, for reads and for the rest.
_THREADS: WeakKeyDictionary[Engine, dict[bool, ThreadPoolExecutor]] = WeakKeyDictionary()

#: How many threads these are, and those of guests, of which there are as many as there are calls.
_MOST, _MOST_GUESTS = 32, 10_000


def threads_of(engine: Engine, access: Access) -> ThreadPoolExecutor:
    """The threads in which a sync engine serves async callers.

    All of those that store may be waiting for a lock: reads have others, and so has each engine.
    """
    of_engine, reads = _THREADS.setdefault(engine, {}), access is READ
    if reads not in of_engine:
        made = ThreadPoolExecutor(_MOST, thread_name_prefix="ckpt_orm")
        of_engine.setdefault(reads, made)
    return of_engine[reads]


@lru_cache(maxsize=1)
def threads_of_guests() -> ThreadPoolExecutor:
    """The threads of calls inside transactions of callers: there is always one more.

    What all others are waiting for may be the end of such a transaction, and that for this call.
    """
    return ThreadPoolExecutor(_MOST_GUESTS, thread_name_prefix="ckpt_orm")


def _renew() -> None:
    """A child process has none of these threads."""
    _THREADS.clear()
    threads_of_guests.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


async def to_its_end(coroutine: Awaitable[R]) -> R:
    """Await what is not interrupted, whose caller gets its CancelledError when it is over."""
    work = asyncio.ensure_future(coroutine)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():  # a scope of anyio cancels again and again
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # has been looked at: nothing is reported as never retrieved
        raise
