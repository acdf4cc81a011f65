"""A link to a Postgres server that takes its time, and counts the turns of the talk.

A turn begins when the client sends after it has got an answer, or for the first time: what it sends
meanwhile without waiting (a pipeline) is the same turn. So turns are round trips.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import URL

#: Bytes read at once.
CHUNK = 1 << 16

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """A TCP port of this machine that leads to the server, half a round trip away each way.

    Attributes:
        turns: round trips so far, of all connections.
    """

    def __init__(self, server: URL, round_trip: float) -> None:
        self._server, self._delay = server, round_trip / 2
        self.turns = 0
        self.port = 0
        self._carrying: set[asyncio.Future[None]] = set()

    def url(self, database: URL) -> URL:
        """The way to a database of the server over the link."""
        # Without TLS, whose negotiation would only be more turns of connecting.
        query = {"sslmode": "disable", "gssencmode": "disable"}
        return URL.create(
            database.drivername,
            database.username,
            database.password,
            "127.0.0.1",
            self.port,
            database.database,
            query,
        )

    async def serve(self, started: threading.Event, ended: asyncio.Event) -> None:
        """Carry what comes until it is ended."""
        listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = listening.sockets[0].getsockname()[1]
        started.set()
        await ended.wait()
        listening.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await self._connect()
        answered = True

        def asked() -> None:
            nonlocal answered
            self.turns += answered
            answered = False

        def answer() -> None:
            nonlocal answered
            answered = True

        there = self._pass_on(reader, far_writer, arrived=asked)
        back = self._pass_on(far_reader, writer, delivered=answer)
        try:
            await asyncio.gather(there, back)
        finally:
            for end in (writer, far_writer):
                end.close()

    async def _connect(self) -> Connection:
        server = self._server
        folder = server.query.get("host")
        if folder is None:
            return await asyncio.open_connection(server.host, server.port or 5432)
        port = server.query.get("port", server.port) or 5432
        return await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{port}")

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        arrived: Callable[[], None] = lambda: None,
        delivered: Callable[[], None] = lambda: None,
    ) -> None:
        """Pass bytes on in their order, each as long after its arrival as the link is long."""
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(due - loop.time())
                delivered()
                writer.write(data)
                if not data:
                    break
                await writer.drain()
            writer.close()

        async def receive() -> None:
            while data := await reader.read(CHUNK):
                arrived()
                under_way.put_nowait((loop.time() + self._delay, data))
            under_way.put_nowait((loop.time(), b""))

        with suppress(ConnectionError):
            await asyncio.gather(receive(), deliver())


@contextmanager
def link(server: URL, round_trip: float) -> Iterator[Link]:
    """A link to the server, with a round trip of so many seconds, for as long as the block runs."""
    found = Link(server, round_trip)
    started, ended = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    serving = found.serve(started, ended)
    thread = threading.Thread(
        target=loop.run_until_complete, args=[serving], name="link", daemon=True
    )
    thread.start()
    started.wait()
    try:
        yield found
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
