"""What is no config, in every method that takes one: told before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from backends import BACKENDS, Backend, Called, engine_of, named
from builders import checkpoint, config, put
from sqlalchemy import URL
from tenancy import scoped, tables

from ckpt_orm import InvalidConfig

NONE: list[tuple[Any, str]] = [
    ("1", "the config is of type str: pass {'configurable': {'thread_id': …}}"),
    ("", "the config is of type str"),
    (["1"], "the config is of type list"),
    ((), "the config is of type tuple"),
    (1, "the config is of type int"),
    ({"configurable": "1"}, "config['configurable'] is of type str"),
    ({"configurable": ["1"]}, "config['configurable'] is of type list"),
]

CALLS: dict[str, Callable[[Called, Any], Any]] = {
    "get_tuple": lambda saver, given: saver.get_tuple(given),
    "get": lambda saver, given: saver.get(given),
    "history": lambda saver, given: saver.get_delta_channel_history(config=given, channels=["c"]),
    "put": lambda saver, given: saver.put(given, checkpoint({}), {}, {}),
    "put_writes": lambda saver, given: saver.put_writes(given, [("c", 1)], "task"),
    "compact": lambda saver, given: saver.compact(None, given),
}

#: Those to which None means every thread.
ALL: dict[str, Callable[[Called, Any], Any]] = {
    "list": lambda saver, given: list(saver.list(given)),
    "count": lambda saver, given: saver.count(given),
    "exists": lambda saver, given: saver.exists(given),
}

#: Those to which None, and whatever is empty, means no bound.
BOUNDS: dict[str, Callable[[Called, Any], Any]] = {
    "list before": lambda saver, given: list(saver.list(None, before=given)),
    "count before": lambda saver, given: saver.count(before=given),
    "exists before": lambda saver, given: saver.exists(config("t"), before=given),
}


def check(saver: Called) -> None:
    put(saver, "t", {"n": 1})
    for name, call in {**CALLS, **ALL, **BOUNDS}.items():
        for given, says in NONE if name not in BOUNDS else [pair for pair in NONE if pair[0]]:
            with pytest.raises(InvalidConfig) as caught:
                call(saver, given)
            assert says in str(caught.value), name
            assert caught.value.__suppress_context__
    for call in CALLS.values():
        with pytest.raises(InvalidConfig, match="the config is None: pass"):
            call(saver, None)
    assert [call(saver, None) for call in [*ALL.values()][1:]] == [1, True]
    assert saver.count(before={"metadata": {}}) == 1


def test_every_method(saver: Called) -> None:
    check(saver)


@named([b for b in BACKENDS if b.name in ("sqlite", "aiosqlite", "psycopg", "asyncpg")])
def test_every_method_of_a_tenant(backend: Backend, backend_url: URL) -> None:
    tables(backend_url)
    loop = asyncio.new_event_loop() if backend.is_async else None
    with engine_of(backend, backend_url, loop) as engine:
        check(Called(scoped(engine), loop, engine))
    if loop is not None:
        loop.close()


def test_a_configs_metadata(saver: Called) -> None:
    with pytest.raises(InvalidConfig, match=r"config\['metadata'\] is of type str: pass"):
        saver.put({**config("t"), "metadata": "x"}, checkpoint({}), {}, {})
    assert saver.count() == 0
