"""Random histories: in whatever order they are called, all backends answer as the model does.

The model is LangGraph's InMemorySaver, with what it lacks added in `model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from backends import BACKENDS, Backend, Called
from builders import checkpoint, config, version
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from model import DELTAS, Model, place_of
from sqlalchemy import URL, Engine, create_engine, select

from ckpt_orm import Checkpoint, CheckpointBlob, CheckpointWrite

#: One of each dialect and colour; the way a connection is held makes no difference to an answer.
CHOSEN = [b for b in BACKENDS if b.name in ("sqlite", "aiosqlite", "psycopg", "asyncpg")]

#: "sub" is a subgraph whose state outlives its calls, the others are calls of one.
NAMESPACES = ["", "sub", "call:1", "call:2", "sub|call:3"]
RUNS = ["r1", "r2"]
CHANNELS = ["log", "files", "plain", "flag"]


def exact(value: Any) -> Any:
    """A value with its types, comparable, whatever the order of its keys."""
    if type(value) is dict:
        return sorted((name, exact(item)) for name, item in value.items())
    return repr(value)


def answer(saved: Any) -> Any:
    """What a checkpoint tuple says; of a config, which the model hands back whole, its place."""
    return saved and [
        place_of(saved.config),
        saved.parent_config and place_of(saved.parent_config),
        exact(saved.checkpoint),
        exact(saved.metadata),
        repr(saved.pending_writes),
    ]


_EXAMPLES = count(1)

threads = st.sampled_from(["a", "b"])
namespaces = st.sampled_from(NAMESPACES)
picks = st.integers(0, 30)
values = st.sampled_from([["x"], {"a": (1, {2})}, True, None, 0, 1.5, "text", "\x00", "emptied"])
filters = st.sampled_from(
    [None, {}, {"run_id": "r1"}, {"d": {"a": 1}}, {"d": {}}, {"n": None}, {"n": True}, {"zz": 0}]
)

TASKS = st.sampled_from(["t1", "t2"])
WRITES = st.lists(
    st.tuples(st.sampled_from(["log", "files", "__error__", "__resume__"]), values), max_size=4
)


@dataclass
class Step:
    """A checkpoint and the writes of a task that follows it."""

    ns: str
    parent: int | None
    changed: dict[str, Any]
    order: int
    run: str
    n: Any
    root: int
    times: int
    writes: list[tuple[str, Any]]
    task: str
    path: str


STEP: dict[str, Any] = {
    "ns": st.sampled_from(["", "", "", "", *NAMESPACES]),
    "parent": st.sampled_from([0, 0, 0, 0, 1, 2, None]),
    "changed": st.dictionaries(st.sampled_from(CHANNELS), values, max_size=3),
    "order": st.sampled_from([1, 1, 1, 1, 0, 2]),
    "run": st.sampled_from(RUNS),
    "n": st.sampled_from([None, True, 1]),
    "root": st.integers(0, 2),
    "times": st.sampled_from([1, 1, 2]),
    "writes": WRITES,
    "task": TASKS,
    "path": st.sampled_from(["", "B", "a"]),
}


class Histories(RuleBasedStateMachine):
    """Calls a saver and the model alike; a class of each backend knows its saver."""

    saver: Called
    engine: Engine

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.prefix = f"{next(_EXAMPLES)}"
        self.counted = count(1)
        self.ids: list[str] = ["none"]

    def teardown(self) -> None:
        try:
            self.everything_is_the_same()
        finally:  # the next example finds nothing, whatever became of this one
            for name in "ab":
                self.saver.delete_thread(self.thread(name))

    def thread(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def both(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Call both, which must say the same."""
        found, expected = (getattr(s, method)(*args, **kwargs) for s in (self.saver, self.model))
        assert exact(found) == exact(expected)

    def stored(self, thread: str, ns: str, pick: int | None) -> Any:
        """One of the checkpoints of a namespace, 0 the one that was put last; or None."""
        ids = list(self.model.storage[thread][ns])
        if pick is None or not ids:
            return None
        return self.model.get_tuple(config(thread, ns, ids[-1 - pick % len(ids)]))

    @initialize(steps=st.lists(st.builds(Step, **STEP), min_size=8, max_size=12))
    def begin(self, steps: Sequence[Step]) -> None:
        self.grow("a", steps)

    @rule(name=threads, steps=st.lists(st.builds(Step, **STEP), min_size=2, max_size=6))
    def grow(self, name: str, steps: Sequence[Step]) -> None:
        for step in steps:
            self.put(self.thread(name), step)

    @rule(steps=st.lists(st.builds(Step, **STEP), min_size=2, max_size=6))
    def go_on(self, steps: Sequence[Step]) -> None:
        self.grow("a", steps)

    def put(self, thread: str, step: Step) -> None:
        parent = self.stored(thread, step.ns, step.parent)
        before = parent.checkpoint if parent else checkpoint({})
        state = {k: v for k, v in before["channel_values"].items() if k not in DELTAS}
        new = {channel: version() for channel in step.changed}
        for channel, value in step.changed.items():
            state.pop(channel, None)
            if value == "emptied":
                continue
            if channel not in DELTAS:
                state[channel] = value
            elif value == ["x"]:  # now and then a delta channel is stored whole
                state[channel] = _DeltaSnapshot(value)
        versions = before["channel_versions"] | new
        counted = [c for c in DELTAS if c in versions and c not in state]
        roots = sorted(self.model.storage[thread][""])
        metadata = {
            "source": "loop",
            "run_id": step.run,
            "d": {"a": len(new), "b": 1},
            "n": step.n,
            "parents": {"": [*roots, "unsaved"][-1 - step.root % 3 % (len(roots) + 1)]},
            **({"counters_since_delta_snapshot": {c: [1, 1] for c in counted}} if counted else {}),
        }
        # Ids do not follow the order of the steps: clocks of several processes do not either.
        id = f"{step.order:02d}-{next(self.counted):04d}"
        self.ids.append(id)
        above = parent.config if parent else config(thread, step.ns)
        for _ in range(step.times):
            self.both("put", above, checkpoint(state, versions, id, ts=""), metadata, new)
        stored = config(thread, step.ns, id)
        self.both("put_writes", stored, step.writes, step.task, step.path)

    @rule(name=threads, ns=namespaces, pick=picks, writes=WRITES, task=TASKS)
    def put_writes(self, name: str, ns: str, pick: int, writes: Any, task: str) -> None:
        saved = self.stored(self.thread(name), ns, pick)
        # Writes may come before their checkpoint.
        target = saved.config if saved else config(self.thread(name), ns, "99-later")
        self.both("put_writes", target, writes, task, "p")

    @rule(name=threads, ns=namespaces, pick=picks)
    def get(self, name: str, ns: str, pick: int) -> None:
        id = None if pick % 3 == 0 else self.ids[pick % len(self.ids)]
        wanted = config(self.thread(name), ns, id)
        assert answer(self.saver.get_tuple(wanted)) == answer(self.model.get_tuple(wanted))

    @rule(
        name=st.one_of(st.none(), threads),
        ns=st.one_of(st.none(), namespaces),
        filter=filters,
        before=st.one_of(st.none(), picks),
        limit=st.sampled_from([None, None, 0, 1, 3]),
    )
    def list(self, name: Any, ns: Any, filter: Any, before: Any, limit: Any) -> None:
        wanted = config(self.thread(name), ns) if name else None
        bound = before and config("any", id=self.ids[before % len(self.ids)])
        options = {"filter": filter, "before": bound or None, "limit": limit}
        found = [answer(saved) for saved in self.saver.list(wanted, **options)]
        assert found == [answer(saved) for saved in self.model.list(wanted, **options)]

    @rule(name=threads, ns=namespaces, pick=picks)
    def delta_history(self, name: str, ns: str, pick: int) -> None:
        if saved := self.stored(self.thread(name), ns, pick):
            self.both("get_delta_channel_history", config=saved.config, channels=["log", "files"])

    @rule(name=threads)
    def delete_thread(self, name: str) -> None:
        self.both("delete_thread", self.thread(name))

    @rule(name=threads, other=threads)
    def copy_thread(self, name: str, other: str) -> None:
        self.both("copy_thread", self.thread(name), self.thread(other))

    @rule(names=st.lists(threads, max_size=2), strategy=st.sampled_from(["keep_latest", "delete"]))
    def prune(self, names: Any, strategy: str) -> None:
        self.both("prune", [self.thread(name) for name in names], strategy=strategy)

    @rule(runs=st.lists(st.sampled_from([*RUNS, "unknown"]), max_size=2))
    def delete_for_runs(self, runs: Any) -> None:
        self.both("delete_for_runs", runs)

    @rule()
    def everything_is_the_same(self) -> None:
        found = [answer(saved) for saved in self.saver.list(None)]
        assert found == [answer(saved) for saved in self.model.list(None)]

    @invariant()
    def the_rows_are_those_of_the_model(self) -> None:
        with self.engine.connect() as conn:
            parents = {tuple(row[:3]): row[3] for row in conn.execute(PARENTS).all()}
            blobs = {tuple(row) for row in conn.execute(BLOBS).all()}
            writes = {tuple(row) for row in conn.execute(WRITTEN).all()}
        assert parents == {
            (thread, ns, id): parent
            for thread, spaces in self.model.storage.items()
            for ns, saved in spaces.items()
            for id, (_, _, parent) in saved.items()
        }
        # A small value is inlined in its checkpoint, and has no blob.
        assert blobs <= self.model.blobs.keys()
        assert writes == {
            (*place, *key) for place, rows in self.model.writes.items() for key in rows
        }


PARENTS = select(
    Checkpoint.thread_id,
    Checkpoint.checkpoint_ns,
    Checkpoint.checkpoint_id,
    Checkpoint.parent_checkpoint_id,
)
BLOBS, WRITTEN = (
    select(*model.__table__.primary_key.columns) for model in (CheckpointBlob, CheckpointWrite)
)


@pytest.mark.parametrize("backend", CHOSEN, ids=lambda backend: backend.name)
def test_every_backend_answers_as_the_model_does(
    backend: Backend, saver: Called, ready_url: URL
) -> None:
    engine = create_engine(ready_url)
    bound = type("Bound", (Histories,), {"saver": saver, "engine": engine})
    try:
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            bound,
            settings=settings(
                max_examples=20,
                stateful_step_count=20,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        engine.dispose()
