"""How many bytes go to the server, which is as many as are stored, whatever the driver does.

psycopg2 writes a parameter into the statement wherever it is named, and pg8000 sends it once for
each time; both send two characters for a byte.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from backends import BACKENDS, Backend, Called, called, named
from builders import checkpoint, config, put, values_of, version
from relays import relay
from sqlalchemy import URL
from test_drivers import DRIVERS

POSTGRES = [backend for backend in BACKENDS if backend.database == "postgres"]
TEXT = {backend.name for backend in DRIVERS}

#: Bytes of a value, and what else a call may send.
SIZE, REST = 100_000, 25_000

CALLS = 4

#: What a list begins with, whose continuation is stored alone: it is larger than that.
BEGUN = [f"{number:0100d}" for number in range(2000)]


def whole(saver: Called, value: Any) -> None:
    found = checkpoint({"a": value}, {"a": version()})
    saver.put(config("t"), found, {}, found["channel_versions"])


def continued(saver: Called, value: Any) -> None:
    put(saver, "t", {"log": [*BEGUN, value]}, config("t"))


def writes(saver: Called, value: Any) -> None:
    parts = [("a", value[: SIZE // 2]), ("b", value[SIZE // 2 :])]
    saver.put_writes(config("t", id="1"), parts, "task")


def at_once(saver: Called, value: Any) -> None:
    """Puts and writes of several callers, which are one statement, but for the first of them."""
    part = SIZE // CALLS // 2
    parts = [value[start : start + part] for start in range(0, SIZE, part)]
    new = [checkpoint({"a": one}, {"a": version()}) for one in parts[:CALLS]]
    puts = [
        lambda one, n=n, c=c: one.put(config(f"n{n}"), c, {}, c["channel_versions"])
        for n, c in enumerate(new)
    ]
    stored = [
        lambda one, n=n, p=p: one.put_writes(config(f"n{n}", id="1"), [("a", p)], "x")
        for n, p in enumerate(parts[CALLS:])
    ]
    saver.at_once(*puts, *stored)


@pytest.mark.parametrize("call", [whole, continued, writes, at_once])
@named(POSTGRES + DRIVERS)
def test_a_payload_is_sent_once(
    backend: Backend, ready_url: URL, postgres: URL, call: Callable[[Called, Any], None]
) -> None:
    value = os.urandom(SIZE)
    with relay(postgres) as found, called(backend, found.url(ready_url)) as saver:
        put(saver, "t", {"log": BEGUN})
        found.sent = 0
        call(saver, value)
        assert SIZE < found.sent < SIZE * (2 if backend.name in TEXT else 1) + REST
        if call is continued:
            assert values_of(saver, config("t")) == {"log": [*BEGUN, value]}


STORING: dict[str, Callable[[Any], Any]] = {
    "a put": lambda st: st.PUT,
    "a put that adds": lambda st: st.PUT_GROWING,
    "writes": lambda st: st.WRITES,
    "several calls": lambda st: st.STORES,
    "segments": lambda st: st.SEGMENTS_TOLD,
    "a put of few": lambda st: st.few_put(blobs=2, tails=0),
    "a put of few that adds": lambda st: st.few_put(blobs=2, tails=2),
    "few writes": lambda st: st.few_writes(rows=2),
}
#: The parameters that hold a value.
VALUES = ("(payload)", "(rows_blob_0)", "(tails_data_0)")


@pytest.mark.parametrize("statement_of", STORING.values(), ids=STORING)
@named([POSTGRES[0]])
def test_it_is_not_copied_on_the_server(saver: Called, statement_of: Callable[[Any], Any]) -> None:
    """Which would keep what all rows are taken from, on its disk where it is large."""
    statement = statement_of(saver.saver._runner.statements)
    with saver.engine.connect() as connection:
        compiled = statement.compile(connection)
        assert {str(compiled).count(name) for name in VALUES} == {0, 1}
        plan = connection.exec_driver_sql(f"EXPLAIN {compiled}", compiled.params).scalars().all()
    assert "Insert on checkpoint" in str(plan)
    assert not {"CTE parcel", "CTE few"} & set(map(str.strip, plan))
