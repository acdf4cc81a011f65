"""A port that leads to the Postgres server of the tests, and counts what is sent there."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

from sqlalchemy import URL


class Relay:
    """The port, and how many bytes came through it from clients."""

    def __init__(self, server: URL) -> None:
        self._server = server
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.sent = 0
        Thread(target=self._accept, daemon=True).start()

    def url(self, database: URL) -> URL:
        """The way to a database of the server through the port."""
        return database.set(host="127.0.0.1", port=self._listening.getsockname()[1], query={})

    def close(self) -> None:
        """Let nobody in any more; those who are in leave by themselves."""
        with suppress(OSError):  # it wakes who accepts
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = self._connect()
                for way in ((near, far, self._count), (far, near, int)):
                    Thread(target=_carry, args=way, daemon=True).start()

    def _count(self, size: int) -> None:
        self.sent += size  # by one connection at a time, or by a few for the same test

    def _connect(self) -> socket.socket:
        folder, port = self._server.query.get("host"), self._server.port or 5432
        if folder is None:
            return socket.create_connection((str(self._server.host), port))
        found = socket.socket(socket.AF_UNIX)
        found.connect(f"{folder}/.s.PGSQL.{port}")
        return found


def _carry(source: socket.socket, target: socket.socket, count: Callable[[int], object]) -> None:
    with source, target, suppress(OSError):
        while data := source.recv(1 << 16):
            count(len(data))
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def relay(server: URL) -> Iterator[Relay]:
    """A relay for the length of a block."""
    found = Relay(server)
    try:
        yield found
    finally:
        found.close()
