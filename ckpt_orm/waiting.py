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
from functools import lru_cache
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Engine
from sqlalchemy.pool import StaticPool

from ckpt_orm.engines import GivenEngine, LoopEngines
from ckpt_orm.forks import after_fork
from ckpt_orm.operations import CHANGE, WRITE, Access

R = TypeVar("R")

_NO_TURN = nullcontext()


class Turns:
    """Callers who take turns, since the database would have them poll: on one SQLite connection.

    Writers of one SQLite file find it locked, and sleep and look again, so that a late one may
    overtake an early one many times. In one process they queue instead. Readers need not, unless
    the engine has a single connection for everybody (a StaticPool). Postgres queues by itself.
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


async def in_thread(function: Callable[[], R]) -> R:
    """`asyncio.to_thread` that is over when it returns, also where the caller was cancelled.

    In threads of this package: those of the loop are where LangGraph runs synchronous nodes, which
    may all be waiting for what is to be loaded here.
    """
    # A thread cannot be stopped. Left alone it would hold its connection, and might commit
    # after the caller has gone on to do something else.
    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    return await to_its_end(loop.run_in_executor(threads(), context.run, function))


@lru_cache(maxsize=1)
def threads() -> ThreadPoolExecutor:
    """The threads in which a sync engine serves async callers, of all savers of the process."""
    return ThreadPoolExecutor(max_workers=32, thread_name_prefix="ckpt_orm")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=threads.cache_clear)


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
