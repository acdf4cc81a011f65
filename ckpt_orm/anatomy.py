"""The anatomy of a thread: its rows without their payloads, and what among them does not fit.

What is missing can only be told of rows that ckpt_orm stored. It stores a row for every version of
a channel, also where that holds no value; the official saver does not, so among its rows a lost
value looks like none. They are told apart by number: versions are counted, and those from the
lowest one on that is known to be of ckpt_orm (a blob with a digest, or an empty one) are taken to
be its own.

Writes are stored before their checkpoint, and stay alone where the run fails before that is stored.
LangGraph stores no checkpoint before its parent. So one that has only writes is gone if it is
another one's parent, and was not stored if it is nobody's.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ckpt_orm.retention import Place, Skeleton, bone_of
from ckpt_orm.rows import EMPTY

#: A blob within its thread: namespace, channel, version.
BlobAt = tuple[str, str, str]


@dataclass
class Anatomy:
    """A thread without payloads: which rows it has, and when they were made.

    Args:
        thread_id: the thread.
        skeleton: its checkpoints that can be read, and the blobs with a value.
        documents: the checkpoint and metadata of each, as text.
        unreadable: the checkpoints whose text is not that of one.
        marked: the channels at which a checkpoint's document says that there is a snapshot.
        blobs: all blobs.
        since: by namespace, the lowest number of a version that ckpt_orm stored.
        writes: how many writes each checkpoint has, also one that is not there.
        born: when its checkpoints, and those that only have writes, were made; None: not known.
    """

    thread_id: str
    skeleton: Skeleton = field(default_factory=Skeleton)
    documents: dict[Place, tuple[str, str]] = field(default_factory=dict)
    unreadable: list[Place] = field(default_factory=list)
    marked: dict[Place, frozenset[str]] = field(default_factory=dict)
    blobs: set[BlobAt] = field(default_factory=set)
    since: dict[str, int] = field(default_factory=dict)
    writes: dict[Place, int] = field(default_factory=dict)
    born: list[datetime | None] = field(default_factory=list)

    def add_blob(self, blob: BlobAt, row: Any) -> None:
        """Take in the row of a blob."""
        ns, _, version = blob
        self.blobs.add(blob)
        if row.type != EMPTY:
            self.skeleton.valued.add(blob)
        number = _number(version)
        if number is not None and (row.type == EMPTY or row.idx):
            self.since[ns] = min(number, self.since.get(ns, number))

    def add_checkpoint(self, place: Place, row: Any) -> None:
        """Take in the row of a checkpoint."""
        self.documents[place] = row.checkpoint, row.metadata
        try:
            bone = bone_of(place, row.parent_checkpoint_id, row.checkpoint, row.metadata)
            values = json.loads(row.checkpoint).get("channel_values") or {}
        except (ValueError, AttributeError, TypeError):
            self.unreadable.append(place)
            return
        self.skeleton.bones[place] = bone
        self.marked[place] = frozenset(name for name, value in values.items() if value is True)

    def is_quiet(self, before: datetime) -> bool:
        """Whether every sign of life is known to be from before a time."""
        return all(at is not None and at < before for at in self.born)

    def orphaned_blobs(self) -> set[BlobAt]:
        """Blobs that no checkpoint refers to; none where a checkpoint cannot be asked."""
        return set() if self.unreadable else self.blobs - self.skeleton.blobs(self.skeleton.bones)

    def unstored(self) -> set[Place]:
        """Checkpoints that have writes and are not there."""
        return self.writes.keys() - self.documents.keys()

    def orphaned_writes(self) -> set[Place]:
        """Checkpoints that have writes and are gone, since a later one was stored after them."""
        return self.unstored() & {bone.parent for bone in self.skeleton.bones.values()}

    def early_writes(self) -> set[Place]:
        """Checkpoints that have writes and were not stored, as far as can be told."""
        return self.unstored() - self.orphaned_writes()

    def deltas(self) -> dict[str, set[str]]:
        """The channels of each namespace that are rebuilt from ancestors."""
        found: dict[str, set[str]] = defaultdict(set)
        for place, bone in self.skeleton.bones.items():
            found[place.checkpoint_ns] |= bone.deltas
        return found

    def missing_blobs(self) -> dict[BlobAt, list[Place]]:
        """Blobs that are not there, and the checkpoints that refer to them."""
        deltas, found = self.deltas(), defaultdict[BlobAt, list[Place]](list)
        for place, bone in self.skeleton.bones.items():
            for channel, version in bone.versions.items():
                blob = (place.checkpoint_ns, channel, version)
                is_delta = channel in deltas[place.checkpoint_ns]
                if blob not in self.blobs and self._is_lost(place, channel, version, is_delta):
                    found[blob].append(place)
        return found

    def _is_lost(self, place: Place, channel: str, version: str, is_delta: bool) -> bool:
        """Whether a version without a blob had one."""
        if is_delta:
            return channel in self.marked[place]
        number, since = _number(version), self.since.get(place.checkpoint_ns)
        is_inlined = channel in self.skeleton.bones[place].inlined
        is_known = number is not None and since is not None and number >= since
        return is_known and not is_inlined

    def broken_chains(self) -> Iterator[tuple[str, Place]]:
        """Channels and checkpoints whose walk ends where an ancestor is not there."""
        for ns, channels in self.deltas().items():
            for channel in channels:
                broken: dict[Place, bool] = {}
                for place in self.skeleton.bones:
                    if place.checkpoint_ns == ns and self._is_broken(place, channel, broken):
                        yield channel, place

    def _is_broken(self, place: Place, channel: str, known: dict[Place, bool]) -> bool:
        """Whether a walk from a checkpoint on ends at one that is not there."""
        bones, path = self.skeleton.bones, dict[Place, None]()
        here: Place | None = place
        while here in bones and here not in known and here not in path:
            if self.skeleton.has_value(here, channel) or channel not in bones[here].versions:
                known[here] = False
                break
            path[here] = None
            here = bones[here].parent
        ends_well = here is None or not known.get(here, here not in path)
        known.update(dict.fromkeys(path, not ends_well))
        return known[place]


def _number(version: str) -> int | None:
    """The number that a version counts by."""
    try:
        return int(version.split(".")[0])
    except ValueError:
        return None
