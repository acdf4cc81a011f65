"""DeltaChannel walks: what a channel got since its nearest stored value, in one statement.

A DeltaChannel stores its value now and then only; in between, a checkpoint is rebuilt from the
writes of its ancestors. The walk starts at the target's parent and follows parents, never the
order of ids. Each channel stops at its own nearest ancestor with a value: a blob, or an entry
inlined in the document (which may be `true` or `null`; where both exist the blob is the value).
That ancestor's writes still count, since they produced its child; the target's own do not.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.base import DeltaChannelHistory

from ckpt_orm import documents
from ckpt_orm.codec import Codec
from ckpt_orm.lanes import Lane
from ckpt_orm.operations import reads
from ckpt_orm.rows import Blob, FoundWrite, Key, Segment


@dataclass
class Step:
    """What the walk found at one checkpoint for one channel."""

    parent_checkpoint_id: str | None
    seeded: bool
    checkpoint: str | None
    blob: Blob | None = None
    segments: dict[tuple[str, bytes], list[Segment]] = field(default_factory=dict)
    writes: list[FoundWrite] = field(default_factory=list)


@dataclass
class Walk:
    """The steps of all channels, by (channel, checkpoint_id), and where they start."""

    key: Key
    target: dict[str, str]
    steps: dict[tuple[str, str], Step]

    def of(self, channel: str) -> Iterator[tuple[str, Step]]:
        """A channel's steps from the target's parent on, its seed the last one; ends on a cycle."""
        here = self.target.get(channel)
        seen = {here}
        while here is not None:
            here = self.steps[channel, here].parent_checkpoint_id
            if here in seen or (channel, here) not in self.steps:
                return
            seen.add(here)
            yield str(here), self.steps[channel, str(here)]
            if self.steps[channel, str(here)].seeded:
                return


@reads
def walk(lane: Lane, key: Key, channels: tuple[str, ...]) -> Walk:
    """The ancestors of a checkpoint, for each channel as far as its nearest stored value."""
    params: dict[str, Any] = {
        "thread_id": key.thread_id,
        "checkpoint_ns": key.checkpoint_ns,
        "channels": documents.encode(list(channels)),
    }
    if key.checkpoint_id is not None:
        params["checkpoint_id"] = key.checkpoint_id
    rows = lane.conn.execute(lane.st.history(latest=key.checkpoint_id is None), params).all()
    target = {row.channel: row.checkpoint_id for row in rows if row.kind == "target"}
    steps = {
        (row.channel, row.checkpoint_id): Step(
            row.parent_checkpoint_id, bool(row.idx), row.checkpoint
        )
        for row in rows
        if row.kind in ("target", "ancestor")
    }
    for row in rows:
        if row.kind == "blob":
            blob = Blob(row.channel, row.version, row.type, row.blob, row.digest, row.chain)
            steps[row.channel, row.checkpoint_id].blob = blob
        elif row.kind == "segment":
            chain = steps[row.channel, row.checkpoint_id].segments
            part = Segment(row.idx, row.blob, row.digest)
            insort(chain.setdefault((row.channel, row.chain), []), part)
        elif row.kind == "write":
            write = FoundWrite(row.task_path, row.task_id, row.idx, row.channel, row.type, row.blob)
            steps[row.channel, row.checkpoint_id].writes.append(write)
    return Walk(key, target, steps)


def decode(codec: Codec, walk: Walk, channels: Sequence[str]) -> dict[str, DeltaChannelHistory]:
    """Each channel's writes, oldest first, and its seed where an ancestor has a value."""
    return {channel: _history(codec, walk, channel) for channel in channels}


def _history(codec: Codec, walk: Walk, channel: str) -> DeltaChannelHistory:
    steps = list(walk.of(channel))
    history: DeltaChannelHistory = {"writes": []}
    for checkpoint_id, step in reversed(steps):
        key = walk.key._replace(checkpoint_id=checkpoint_id)
        history["writes"] += codec.load_writes(key, step.writes)
    if steps and steps[-1][1].seeded:
        checkpoint_id, step = steps[-1]
        key = walk.key._replace(checkpoint_id=checkpoint_id)
        history["seed"] = _seed(codec, key, channel, step)
    return history


def _seed(codec: Codec, key: Key, channel: str, step: Step) -> Any:
    if step.blob is not None:
        return codec.load_blob(key, step.blob, step.segments)
    document = codec.load_document(key, step.checkpoint or "{}")
    return document["channel_values"][channel]
