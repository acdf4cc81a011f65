"""Checkpoints for tests, built and stored in one line.

    first = put(saver, "t1", {"messages": ["a"]})
    second = put(saver, "t1", {"messages": ["a"], "n": 1}, parent=first, new=["n"])

Without `versions` every value is of a new version; a value that is not in `new` keeps the version
it has in the parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from itertools import count
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.base.id import uuid6

_NUMBERS = count(1)


def config(thread: Any, ns: str | None = "", id: str | None = None) -> RunnableConfig:
    """What names a checkpoint; `ns` None leaves the namespace out."""
    configurable = {"thread_id": thread}
    if ns is not None:
        configurable["checkpoint_ns"] = ns
    if id is not None:
        configurable["checkpoint_id"] = id
    return {"configurable": configurable}


def id_of(config: RunnableConfig) -> str:
    """The checkpoint a config names."""
    found: str = config["configurable"]["checkpoint_id"]
    return found


def version() -> str:
    """A channel version greater than all before it, as `get_next_version` makes them."""
    return f"{next(_NUMBERS):032d}.{0:016d}"


def checkpoint(
    values: Mapping[str, Any],
    versions: Mapping[str, Any] | None = None,
    id: str | None = None,
    **other: Any,
) -> Checkpoint:
    """A checkpoint of format v4 with a new id; `other` adds or replaces entries."""
    found: dict[str, Any] = {
        "v": 4,
        "id": id or str(uuid6()),
        "ts": datetime.now(timezone.utc).isoformat(),
        "channel_values": dict(values),
        "channel_versions": dict(versions or {}),
        "versions_seen": {},
        "updated_channels": None,
    }
    return {**found, **other}  # type: ignore[typeddict-item, return-value]


def put(
    saver: Any,
    thread: Any,
    values: Mapping[str, Any],
    parent: RunnableConfig | None = None,
    metadata: Mapping[str, Any] | None = None,
    ns: str = "",
    *,
    new: Iterable[str] | None = None,
    versions: Mapping[str, Any] | None = None,
    id: str | None = None,
    **other: Any,
) -> RunnableConfig:
    """Store a checkpoint and return its config.

    Args:
        saver: a saver, or a `Called` one.
        thread: the thread_id.
        values: all channel values, those that did not change too.
        parent: the config of the checkpoint before; its versions are continued from.
        metadata: replaces {"source": "loop", "step": 0}.
        ns: the namespace.
        new: the channels that changed: those of `values` by default. One that is not among `values`
            is empty from now on.
        versions: the versions of all channels, instead of counted ones.
        id: the checkpoint's id.
        **other: entries of the checkpoint.
    """
    changed = list(values if new is None else new)
    if versions is None:
        before = saver.get_tuple(parent).checkpoint["channel_versions"] if parent else {}
        versions = {**before, **{channel: version() for channel in changed}}
    found: RunnableConfig = saver.put(
        parent or config(thread, ns),
        checkpoint(values, versions, id, **other),
        {"source": "loop", "step": 0} if metadata is None else metadata,
        {channel: versions[channel] for channel in changed},
    )
    return found


def exact(value: Any) -> Any:
    """A form of `value` that is equal for values which are equal and of the same types, deeply.

    Floats are told apart by their text, so NaN equals itself and -0.0 does not equal 0.0.
    """
    kind = type(value)
    if kind is float:
        return kind, repr(value)
    if isinstance(value, dict):
        return kind, {exact(key): exact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [exact(item) for item in value]
        return kind, tuple(items) if isinstance(value, tuple) else items
    return kind, value


def values_of(saver: Any, config: RunnableConfig) -> dict[str, Any]:
    """The channel values of a checkpoint as they come back."""
    found: dict[str, Any] = saver.get_tuple(config).checkpoint["channel_values"]
    return found


def metadata_of(saver: Any, config: RunnableConfig) -> dict[str, Any]:
    """The metadata of a checkpoint as it comes back."""
    found: dict[str, Any] = saver.get_tuple(config).metadata
    return found
