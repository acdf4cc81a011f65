"""Delta history: what a channel got since its nearest stored value, on this branch alone.

The base class's own walk, one `get_tuple` per ancestor, is the oracle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from backends import Called
from builders import config, id_of, put, version
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from sqlalchemy import URL, Engine, create_engine, event, insert, update

from ckpt_orm import Checkpoint, CheckpointWrite, history
from ckpt_orm.lanes import Lane
from ckpt_orm.rows import Key

#: What a step that wrote a DeltaChannel puts: its new version, no value.
NO_VALUE: dict[str, Any] = {}


def walked(saver: Any, target: Any, channels: Sequence[str]) -> Any:
    """The base class's walk; it needs nothing of a saver but its `get_tuple`."""
    return BaseCheckpointSaver.get_delta_channel_history(saver, config=target, channels=channels)


def history_of(saver: Any, target: Any, channel: str) -> Any:
    return saver.get_delta_channel_history(config=target, channels=[channel])[channel]


def values(found: Any) -> list[Any]:
    return [value for _, _, value in found["writes"]]


def chain(saver: Called, thread: str, *batches: Sequence[Any]) -> list[Any]:
    """A checkpoint per batch, whose writes to "log" it holds, and one more as the target."""
    configs: list[Any] = []
    for batch in [*batches, ()]:
        parent = configs[-1] if configs else None
        configs.append(put(saver, thread, NO_VALUE, parent, new=["log"]))
        if batch:
            saver.put_writes(configs[-1], [("log", value) for value in batch], "task")
    return configs


@contextmanager
def statements_counted() -> Iterator[list[str]]:
    """The statements that any engine executes meanwhile."""
    found: list[str] = []

    def executed(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    event.listen(Engine, "before_cursor_execute", executed)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", executed)


def test_writes_come_oldest_first_and_the_targets_own_are_left_out(saver: Called) -> None:
    configs = chain(saver, "t", ["a", "b"], ["c"], ["d", "e"])
    saver.put_writes(configs[-1], [("log", "pending")], "task")
    found = history_of(saver, configs[-1], "log")
    assert found == {"writes": [("task", "log", value) for value in "abcde"]}
    assert history_of(saver, config("t"), "log") == found, "the latest checkpoint is the target"
    assert values(history_of(saver, configs[1], "log")) == ["a", "b"]
    assert history_of(saver, configs[0], "log") == {"writes": []}


def test_within_a_checkpoint_path_then_task_then_position_decide(saver: Called) -> None:
    first = put(saver, "t", NO_VALUE, new=["log"])
    # Code points: "B" before "a" before "~", which a locale's order would turn around.
    for path, task in [("~~01", "1"), ("a", "2"), ("B", "4"), ("B", "3"), ("", "5")]:
        writes = [("log", (path, task, 0)), ("other", 0), ("log", (path, task, 2))]
        saver.put_writes(first, writes, task, path)
    target = put(saver, "t", NO_VALUE, first, new=["log"])
    found = values(history_of(saver, target, "log"))
    assert [tuple(value) for value in found] == [
        *[("", "5", 0), ("", "5", 2), ("B", "3", 0), ("B", "3", 2), ("B", "4", 0), ("B", "4", 2)],
        *[("a", "2", 0), ("a", "2", 2), ("~~01", "1", 0), ("~~01", "1", 2)],
    ]


SEEDS = {
    "snapshot": _DeltaSnapshot(["kept"]),
    "snapshot of nothing": _DeltaSnapshot(None),
    "list": ["plain"],
    "object": {"a": {1, 2}},
    "true": True,
    "false": False,
    "none": None,
    "zero": 0,
    "float": -0.0,
    "text": "",
    "nul": "\x00",
}


def test_the_nearest_value_is_the_seed_and_its_own_writes_follow_it(saver: Called) -> None:
    for thread, seed in SEEDS.items():
        oldest = put(saver, thread, {"log": ["older seed"]})
        saver.put_writes(oldest, [("log", "subsumed")], "task")
        seeded = put(saver, thread, {"log": seed}, oldest)
        saver.put_writes(seeded, [("log", 1)], "task")
        middle = put(saver, thread, NO_VALUE, seeded, new=["log"])
        saver.put_writes(middle, [("log", 2)], "task")
        target = put(saver, thread, NO_VALUE, middle, new=["log"])

        found = history_of(saver, target, "log")
        assert values(found) == [1, 2], thread
        assert repr(found["seed"]) == repr(seed)
        assert repr(found) == repr(walked(saver, target, ["log"])["log"])


def test_an_empty_version_is_no_seed_and_a_version_that_did_not_change_is(saver: Called) -> None:
    seeded = put(saver, "t", {"log": _DeltaSnapshot([0]), "gone": 1})
    saver.put_writes(seeded, [("other", 1)], "task")
    # "log" was not written: the snapshot under its unchanged version is this checkpoint's too.
    unchanged = put(saver, "t", NO_VALUE, seeded, new=["gone"])
    saver.put_writes(unchanged, [("log", 1), ("gone", 2)], "task")
    target = put(saver, "t", NO_VALUE, unchanged, new=["log", "gone"])

    found = saver.get_delta_channel_history(config=target, channels=["log", "gone"])
    assert found == walked(saver, target, ["log", "gone"])
    assert found["log"] == {"writes": [("task", "log", 1)], "seed": _DeltaSnapshot([0])}
    assert found["gone"] == {"writes": [("task", "gone", 2)], "seed": 1}


def test_channels_of_an_iterator(saver: Called) -> None:
    at = put(saver, "t", {"a": [2]}, put(saver, "t", {"a": [1], "b": [1]}))
    asked = {"config": at, "channels": ["a", "b"]}
    found = saver.get_delta_channel_history(**asked)
    assert set(found) == {"a", "b"}
    assert saver.get_delta_channel_history(**{**asked, "channels": iter("ab")}) == found


def test_each_channel_stops_at_its_own_seed(saver: Called) -> None:
    configs: list[Any] = []
    seeds: list[dict[str, Any]] = [{"deep": ["d"]}, {"never": None}, {}, {"near": ["n"]}, {}, {}]
    for number, seed in enumerate(seeds):
        parent = configs[-1] if configs else None
        stored = {name: value for name, value in seed.items() if value is not None}
        configs.append(put(saver, "t", stored, parent, new=["deep", "near", "never"]))
        writes = [(name, number) for name in ("deep", "near", "never")]
        saver.put_writes(configs[-1], writes, "task")

    channels = ["near", "deep", "never", "unknown"]
    found = saver.get_delta_channel_history(config=configs[-1], channels=channels)
    assert found == walked(saver, configs[-1], channels)
    assert list(found) == channels
    assert values(found["near"]) == [3, 4]
    assert values(found["deep"]) == values(found["never"]) == [0, 1, 2, 3, 4]
    assert found["near"]["seed"] == ["n"]
    assert "seed" not in found["never"]
    assert found["unknown"] == {"writes": []}


def test_nothing_is_fetched_beyond_a_channels_own_seed(saver: Called, ready_url: URL) -> None:
    configs = chain(saver, "t", *([[n]] * 1 for n in range(5)))
    target = put(saver, "t", {"near": ["n"]}, configs[-1])
    target = put(saver, "t", NO_VALUE, target, new=["near", "log"])
    engine = create_engine(ready_url)
    with engine.connect() as conn:
        key = Key("t", "", id_of(target))
        statements = saver.saver._runner.statements
        walk = history.walk.function(Lane(conn, statements), key, ("near", "log"))
    engine.dispose()
    fetched = [channel for channel, _ in walk.steps]
    assert (fetched.count("near"), fetched.count("log")) == (2, 8)


def test_a_fork_sees_its_own_branch_only(saver: Called) -> None:
    configs = chain(saver, "t", ["a"], ["b"])
    fork = put(saver, "t", NO_VALUE, configs[0], new=["log"])
    saver.put_writes(fork, [("log", "fork")], "task")
    head = put(saver, "t", NO_VALUE, fork, new=["log"])
    assert values(history_of(saver, head, "log")) == ["a", "fork"]
    assert values(history_of(saver, configs[-1], "log")) == ["a", "b"]


def test_other_namespaces_and_threads_with_the_same_ids_are_apart(saver: Called) -> None:
    for thread, ns in [("t", ""), ("t", "sub:1"), ("t1", ""), ("T", "")]:
        first = put(saver, thread, NO_VALUE, ns=ns, new=["log"], id="1")
        saver.put_writes(first, [("log", (thread, ns))], "task")
        put(saver, thread, NO_VALUE, first, ns=ns, new=["log"], id="2")
    for thread, ns in [("t", ""), ("t", "sub:1"), ("t1", ""), ("T", "")]:
        found = values(history_of(saver, config(thread, ns, "2"), "log"))
        assert list(map(tuple, found)) == [(thread, ns)]


def test_a_channels_name_is_taken_literally(saver: Called) -> None:
    for channel in [
        "a.b",
        'a"b',
        "a'b",
        "$",
        "$.a",
        "a[0]",
        "a\\b",
        "\\x41",
        "ключ",
        "🙂",
        "%s",
        ":x",
        "",
    ]:
        first = put(saver, f"of {channel}", {channel: ["seed"], "a": ["not this"]})
        saver.put_writes(first, [(channel, 1), ("a", 2)], "task")
        target = put(saver, f"of {channel}", NO_VALUE, first, new=[channel])
        expected = {"writes": [("task", channel, 1)], "seed": ["seed"]}
        assert history_of(saver, target, channel) == expected


def test_nothing_to_walk_is_no_error(saver: Called) -> None:
    lone = put(saver, "t", {"log": [1]})
    nothing: dict[str, Any] = {"writes": []}
    assert saver.get_delta_channel_history(config=lone, channels=[]) == {}
    assert history_of(saver, lone, "log") == nothing, "its own value is not history"
    assert history_of(saver, config("nobody"), "log") == nothing
    assert history_of(saver, config("t", id="unknown"), "log") == nothing
    both = saver.get_delta_channel_history(config=lone, channels=["log", "log"])
    assert both == {"log": nothing}


def _set_parent(url: URL, checkpoint_id: str, parent: str) -> None:
    engine = create_engine(url)
    with engine.begin() as conn:
        row = update(Checkpoint).where(Checkpoint.checkpoint_id == checkpoint_id)
        conn.execute(row.values(parent_checkpoint_id=parent))
    engine.dispose()


def test_the_walk_ends_where_an_ancestor_is_missing(saver: Called, ready_url: URL) -> None:
    configs = chain(saver, "t", ["a"], ["b"], ["c"])
    _set_parent(ready_url, id_of(configs[2]), "gone")
    assert values(history_of(saver, configs[-1], "log")) == ["c"]


def test_a_cycle_of_parents_ends(saver: Called, ready_url: URL) -> None:
    configs = chain(saver, "t", ["a"], ["b"], ["c"])
    for back_to in configs:
        _set_parent(ready_url, id_of(configs[0]), id_of(back_to))
        assert values(history_of(saver, configs[-1], "log")) == ["a", "b", "c"]


def test_three_thousand_ancestors_are_one_statement(saver: Called, ready_url: URL) -> None:
    depth = 3_000
    first = put(saver, "t", {"log": _DeltaSnapshot([]), "flag": True}, id="00000")
    saver.put_writes(first, [("log", 0)], "task")
    written = saver.get_tuple(first).checkpoint["channel_versions"] | {"log": version()}
    row = {"thread_id": "t", "checkpoint_ns": "", "metadata_": {}}
    checkpoints = [
        row
        | {
            "checkpoint_id": f"{n:05d}",
            # Ids need not follow the order of the steps: only the parent counts.
            "parent_checkpoint_id": f"{n - 1:05d}",
            "checkpoint": {"v": 4, "id": f"{n:05d}", "channel_versions": written},
        }
        for n in range(1, depth + 1)
    ]
    tag, payload = saver.serde.dumps_typed("x")
    write = {"thread_id": "t", "checkpoint_ns": "", "task_id": "task", "idx": 0, "channel": "log"}
    writes = [
        write | {"checkpoint_id": f"{n:05d}", "type": tag, "blob": payload} for n in range(1, depth)
    ]
    engine = create_engine(ready_url)
    with engine.begin() as conn:
        conn.execute(insert(Checkpoint), checkpoints)
        conn.execute(insert(CheckpointWrite), writes)
    engine.dispose()

    with statements_counted() as statements:
        found = saver.get_delta_channel_history(config=config("t"), channels=["log", "flag"])
    assert len(statements) == 1
    assert values(found["log"]) == [0] + ["x"] * (depth - 1)
    assert found["log"]["seed"] == _DeltaSnapshot([])
    assert found["flag"] == {"writes": [], "seed": True}


# --- random trees, against the base class's walk and InMemorySaver ---

CHANNELS = ("log", "set")

#: What a step does to a channel: nothing, a write without a value, or a value.
ACTIONS = st.one_of(
    st.sampled_from(["nothing", "written"]),
    st.sampled_from([_DeltaSnapshot([1]), ["plain"], {"a": 1}, True, None, 7, "text", 1e16]).map(
        lambda value: ("value", value)
    ),
)
WRITES = st.lists(
    st.tuples(
        st.sampled_from(CHANNELS),
        st.integers(0, 9),
        st.sampled_from(["t1", "t2"]),
        st.sampled_from(["", "p", "~~1"]),
    ),
    max_size=3,
)
#: Each checkpoint: how far back its parent is (0 for a root), its actions, its writes.
STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.tuples(*[ACTIONS] * len(CHANNELS)), WRITES),
    min_size=1,
    max_size=8,
)


def _grow(savers: Sequence[Any], thread: str, steps: Sequence[Any]) -> list[Any]:
    """The same tree in several savers; the configs of its checkpoints."""
    configs: list[Any] = []
    states: list[tuple[dict[str, Any], dict[str, str]]] = []
    for back, actions, writes in steps:
        parent = len(configs) - back if 0 < back <= len(configs) else None
        before, versions = ({}, {}) if parent is None else states[parent]
        # A step puts all plain values again, but a snapshot only once.
        state = {k: v for k, v in before.items() if not isinstance(v, _DeltaSnapshot)}
        changed = [c for c, a in zip(CHANNELS, actions, strict=True) if a != "nothing"]
        versions = versions | {channel: version() for channel in changed}
        for channel, action in zip(CHANNELS, actions, strict=True):
            if action == "written":
                state.pop(channel, None)
            elif action != "nothing":
                state[channel] = action[1]
        states.append((state, versions))
        number = f"{len(configs):04d}"
        for saver in savers:
            above = None if parent is None else configs[parent]
            found = put(saver, thread, state, above, new=changed, versions=versions, id=number)
            for channel, value, task, path in writes:
                saver.put_writes(found, [(channel, value)], task, path)
        configs.append(found)
    return configs


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_random_trees_are_walked_as_the_base_class_walks_them(
    saver: Called, steps: Sequence[Any]
) -> None:
    model = InMemorySaver()
    thread = version()  # a thread for each example
    for target in _grow([saver, model], thread, steps):
        found = saver.get_delta_channel_history(config=target, channels=CHANNELS)
        assert repr(found) == repr(walked(saver, target, CHANNELS))
        expected = model.get_delta_channel_history(config=target, channels=CHANNELS)
        assert repr(found) == repr(expected)
