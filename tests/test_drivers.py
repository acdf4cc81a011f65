"""Drivers an application may have already: psycopg2 and pg8000, on which no other test runs.

The contract is that of the other tests, of which a choice is run here once more: a test function
that is imported is collected again, with this file's `backend`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from backends import BACKENDS, Backend, Called, called, named
from builders import config, put, values_of
from servers import execute
from sqlalchemy import URL, event, text
from sqlalchemy.orm import Session
from test_embedding import (
    fan,
    test_its_isolation_level,
    test_json_functions_of_the_engine_are_not_used,
)
from test_filters import test_what_a_filter_matches
from test_finding import (
    test_a_thread_is_told_by_the_root_graphs_newest_checkpoint,
    test_counts_are_those_of_the_list,
)
from test_history import test_each_channel_stops_at_its_own_seed
from test_list import test_before, test_which_namespaces_and_threads
from test_values import test_classes_are_what_the_serde_makes_of_them, test_scalars
from test_writes import (
    test_a_special_channel_is_replaced_and_any_other_write_stays,
    test_order_is_by_path_task_and_position,
    test_the_rule_holds_for_each_row_not_for_the_batch,
    test_values_of_writes,
)

from ckpt_orm import DatabaseError, SchemaNotReady

DRIVERS = [
    Backend("psycopg2", "postgres", "postgresql+psycopg2", False),
    Backend("pg8000", "postgres", "postgresql+pg8000", True),
]

__all__ = [
    "test_a_special_channel_is_replaced_and_any_other_write_stays",
    "test_a_thread_is_told_by_the_root_graphs_newest_checkpoint",
    "test_before",
    "test_classes_are_what_the_serde_makes_of_them",
    "test_counts_are_those_of_the_list",
    "test_each_channel_stops_at_its_own_seed",
    "test_its_isolation_level",
    "test_json_functions_of_the_engine_are_not_used",
    "test_order_is_by_path_task_and_position",
    "test_scalars",
    "test_the_rule_holds_for_each_row_not_for_the_batch",
    "test_values_of_writes",
    "test_what_a_filter_matches",
    "test_which_namespaces_and_threads",
]


@pytest.fixture(params=DRIVERS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.param
    return found


def test_every_method(saver: Called) -> None:
    first = put(saver, "t", {"log": [1]}, metadata={"run_id": "r1"})
    second = put(saver, "t", {"log": [1, 2]}, first, metadata={"run_id": "r2"})
    saver.copy_thread("t", "u")
    saver.delete_for_runs(["r1"])
    assert [found.config for found in saver.list(config("t"))] == [second]
    saver.prune(["t", "u"])
    saver.delete_thread("u")
    assert [told.thread_id for told in saver.threads()] == ["t"]
    found = saver.run(fan(saver), {"done": []}, config("graph"))
    assert found == {"done": ["a", "b", "c"]}


def test_errors_have_their_codes(backend: Backend, backend_url: URL) -> None:
    """By which a missing table is told from a refusal, and a lost connection from both."""
    with called(backend, backend_url) as saver:
        put(saver, "t", {"log": [1]})
        execute(backend_url, "ALTER TABLE checkpoints ADD CHECK (thread_id <> 'bad')")
        with pytest.raises(DatabaseError) as caught:
            put(saver, "bad", {"log": [1]})
        assert caught.value.code == "23514"
        opened: list[object] = []
        event.listen(saver.engine, "connect", lambda *args: opened.append(args))
        end_connections(backend_url)
        assert values_of(saver, config("t")) == {"log": [1]}
        assert len(opened) == 1
        execute(backend_url, "DROP TABLE checkpoints, ckpt_orm_alembic_version")
        with pytest.raises(SchemaNotReady):
            saver.get_tuple(config("t"))


def end_connections(url: URL) -> None:
    execute(
        url,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


CALLS: dict[str, Callable[[Called], object]] = {
    "get_tuple": lambda saver: saver.get_tuple(config("t")),
    "put": lambda saver: put(saver, "u", {"log": [2]}),
    "put_writes": lambda saver: saver.put_writes(config("t", id="1"), [("log", 2)], "task"),
    "delete_thread": lambda saver: saver.delete_thread("elsewhere"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@named([backend for backend in BACKENDS if backend.database == "postgres"] + DRIVERS)
def test_a_server_that_is_gone_once_all_is_done(
    backend: Backend, ready_url: URL, call: Callable[[Called], object]
) -> None:
    """Before the connection is back: with some drivers its level is set back by a statement."""
    only_one = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5}
    with called(backend, ready_url, only_one) as saver:
        put(saver, "t", {"log": [1]})
        executed: list[object] = []

        def after(*args: object) -> None:
            if not executed:
                end_connections(ready_url)
            executed.append(args)

        event.listen(saver.engine, "after_cursor_execute", after)
        call(saver)
        assert executed
        assert saver.checked_out() == 0
        assert values_of(saver, config("t")) == {"log": [1]}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_a_server_that_is_gone_before_anything_is_done(
    backend: Backend, ready_url: URL, call: Callable[[Called], object]
) -> None:
    with called(backend, ready_url, {"pool_size": 1, "max_overflow": 0}) as saver:
        put(saver, "t", {"log": [1]})
        end_connections(ready_url)
        call(saver)
        assert values_of(saver, config("t")) == {"log": [1]}


def test_in_the_callers_transaction(saver: Called) -> None:
    with Session(saver.engine) as session:
        inside = Called(saver.saver.using(session), saver.loop, saver.given)
        stored = put(inside, "t", {"log": [1]})
        session.execute(text("ALTER TABLE checkpoints ADD CHECK (thread_id <> 'bad')"))
        with pytest.raises(DatabaseError):
            put(inside, "bad", {"log": [1]})
        inside.put_writes(stored, [("log", 2)], "task")
        session.execute(text("SELECT 1"))
        session.rollback()
        assert not saver.exists(config("t"))
        stored = put(inside, "t", {"log": [1]})
        session.commit()
    assert saver.exists(stored)
