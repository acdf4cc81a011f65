"""Compacting: a checkpoint is given the values that its DeltaChannels are rebuilt to.

The value is stored as LangGraph itself stores one, a `_DeltaSnapshot` under the version that the
channel has at the checkpoint, where until now it says that there is none. Nothing else changes: no
id, no version, no pending write, so a run that is live goes on. Every checkpoint of that version
has the same value, and from then on needs no ancestors: `prune` and `sweep` let them go.

Only the channel knows how its writes are put together, so it takes the graph's channels; and of
these only what is public: `from_checkpoint`, `replay_writes` and `get`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from ckpt_orm.codec import Codec
from ckpt_orm.lanes import Lane
from ckpt_orm.operations import changes, store
from ckpt_orm.rows import NOTHING, Blob, Key


@changes
def snapshot(
    lane: Lane,
    key: Key,
    blobs: Sequence[Blob],
    filled: Mapping[str, Any] = NOTHING,
) -> bool:
    """Store values where a checkpoint has none; whether it is still there."""
    if lane.conn.execute(lane.st.THERE, key._asdict()).first() is None:
        return False
    store(lane, lane.st.SNAPSHOTS, {**key.thread(), **filled}, blobs)
    return True


def rebuilt(channels: Mapping[str, Any], found: CheckpointTuple) -> list[str]:
    """The DeltaChannels that have no value of their own at a checkpoint."""
    checkpoint = found.checkpoint
    return [
        name
        for name in checkpoint["channel_versions"]
        if hasattr(channels.get(name), "replay_writes") and name not in checkpoint["channel_values"]
    ]


def encode(
    codec: Codec,
    channels: Mapping[str, Any],
    found: CheckpointTuple,
    histories: Mapping[str, DeltaChannelHistory],
) -> list[Blob]:
    """The values of channels, from their histories."""
    versions = found.checkpoint["channel_versions"]
    return [
        codec.blob(name, versions[name], _DeltaSnapshot(_value(channels[name], history)))
        for name, history in histories.items()
    ]


def _value(channel: Any, history: DeltaChannelHistory) -> Any:
    # A seed of None starts empty, as none does.
    live = channel.from_checkpoint(history.get("seed"))
    live.replay_writes(history["writes"])
    return live.get()
