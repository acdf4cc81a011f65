"""Deleting and copying by rule: what survives stays as readable as it was.

A thread is looked at in one statement, as a skeleton without any state. What goes is decided on it,
in plain Python, and deleted by key; so a checkpoint that a run saves meanwhile, and its blobs, are
neither seen nor touched. Three things keep more than was asked for:

* a blob stays while any remaining checkpoint refers to it;
* a checkpoint that is rebuilt from its ancestors (a DeltaChannel without a value of its own) keeps
  them back to the nearest one with a value, and they in turn keep what they need;
* one of a format before v4 keeps the parent that holds its pending sends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import Any, NamedTuple

from ckpt_orm import documents
from ckpt_orm.errors import CorruptCheckpoint, InvalidConfig
from ckpt_orm.lanes import Lane
from ckpt_orm.operations import Operation, changes, delete_thread, hold_chains, take_turns
from ckpt_orm.rows import NO_MAPPING, SENDS_WITH_CHECKPOINT
from ckpt_orm.statements.dialects import CHAIN_SIZE

#: The metadata entry in which LangGraph counts, per DeltaChannel, the steps since its last value.
DELTA_COUNTERS = "counters_since_delta_snapshot"

#: Separates the parts of a namespace, and the name of a subgraph's node from the id of its call.
NS_SEPARATOR, CALL_SEPARATOR = "|", ":"


class Place(NamedTuple):
    """A checkpoint within its thread."""

    checkpoint_ns: str
    checkpoint_id: str


@dataclass
class Bone:
    """A checkpoint without its state."""

    parent: Place | None
    versions: dict[str, str]
    inlined: frozenset[str]
    deltas: frozenset[str]
    root: Place | None
    run_id: str | None
    sends_with_parent: bool


@dataclass
class Skeleton:
    """A thread without its state: its checkpoints, and which versions have a blob with a value."""

    bones: dict[Place, Bone] = field(default_factory=dict)
    valued: set[tuple[str, str, str]] = field(default_factory=set)
    with_sends: set[Place] = field(default_factory=set)

    def latest(self) -> dict[str, Place]:
        """The newest checkpoint of each namespace."""
        heads: dict[str, Place] = {}
        for place in sorted(self.bones):
            heads[place.checkpoint_ns] = place
        return heads

    def needed(self, kept: Iterable[Place]) -> set[Place]:
        """The checkpoints that `kept` ones, and each other, cannot be read without; `kept` too."""
        deltas: dict[str, set[str]] = defaultdict(set)
        for place, bone in self.bones.items():
            deltas[place.checkpoint_ns] |= bone.deltas
        needed: set[Place] = set()
        walked: set[tuple[Place, str]] = set()
        waiting = [place for place in kept if place in self.bones]
        while waiting:
            place = waiting.pop()
            if place not in needed:
                needed.add(place)
                waiting += self._needs(place, deltas[place.checkpoint_ns], walked)
        return needed

    def _needs(
        self, place: Place, deltas: set[str], walked: set[tuple[Place, str]]
    ) -> Iterator[Place]:
        """The ancestors a checkpoint is rebuilt from, and the parent that holds its sends."""
        bone = self.bones[place]
        for channel in deltas:
            if channel in bone.versions and not self.has_value(place, channel):
                yield from self._walk(bone.parent, channel, walked)
        if bone.sends_with_parent and bone.parent in self.with_sends and bone.parent in self.bones:
            yield bone.parent

    def _walk(
        self, here: Place | None, channel: str, walked: set[tuple[Place, str]]
    ) -> Iterator[Place]:
        """The ancestors back to the nearest value, as `history` walks: whatever they know of it."""
        while here is not None and here in self.bones and (here, channel) not in walked:
            walked.add((here, channel))
            yield here
            if self.has_value(here, channel):
                return
            here = self.bones[here].parent

    def has_value(self, place: Place, channel: str) -> bool:
        """Whether a channel's value is stored at a checkpoint."""
        bone = self.bones[place]
        blob = (place.checkpoint_ns, channel, bone.versions.get(channel, ""))
        return channel in bone.inlined or blob in self.valued

    def blobs(self, places: Iterable[Place]) -> set[tuple[str, str, str]]:
        """The (namespace, channel, version) that checkpoints refer to."""
        return {
            (place.checkpoint_ns, *version)
            for place in places
            for version in self.bones[place].versions.items()
        }


@changes
def prune(lane: Lane, thread_id: str) -> None:
    """Keep the latest checkpoint of each namespace, and what it needs."""
    take_turns(lane, [thread_id])
    skeleton = skeleton_of(lane, thread_id)
    heads = skeleton.latest()
    root = [heads.get("")]
    kept = [head for head in heads.values() if not is_over(skeleton.bones, head, root)]
    reduce(lane, thread_id, reduction(skeleton, kept))


def is_over(bones: dict[Place, Bone], head: Place, kept: Collection[Place | None]) -> bool:
    """Whether a namespace is that of a subgraph call which the root graph has left behind.

    Such a namespace ends in the id of the call; a `checkpointer=True` subgraph's, which outlives
    its calls, does not. While the checkpoint it started from is among the root's `kept` ones, or is
    not saved yet, the call may still be resumed.
    """
    is_call = CALL_SEPARATOR in head.checkpoint_ns.rsplit(NS_SEPARATOR, 1)[-1]
    started_from = bones[head].root
    return is_call and started_from in bones and started_from not in kept


@changes
def delete_for_runs(lane: Lane, run_ids: Sequence[str]) -> None:
    """Delete the checkpoints of some runs, except those that a remaining one needs."""
    runs = set(run_ids)
    wanted = {"run_ids": documents.encode(list(runs))}
    threads = sorted(row.thread_id for row in lane.conn.execute(lane.st.THREADS_OF_RUNS, wanted))
    take_turns(lane, threads)
    for thread_id in threads:
        skeleton = skeleton_of(lane, thread_id)
        kept = [place for place, bone in skeleton.bones.items() if bone.run_id not in runs]
        reduce(lane, thread_id, reduction(skeleton, kept))


@changes
def copy_thread(lane: Lane, source: str, target: str) -> None:
    """Copy all rows of a thread that the other one does not have."""
    threads = _from_to(source, target)
    take_turns(lane, [target])
    hold_chains(lane, target)
    for copy in lane.st.COPIES:
        lane.conn.execute(copy, threads)
    collect(lane, target)


def _from_to(source: str, target: str) -> dict[str, Any]:
    """From where, to where, and what tells the chains of this copy from all others."""
    return {"source": source, "target": target, "salt": token_bytes(CHAIN_SIZE // 2)}


@changes
def copy_latest(lane: Lane, source: str, target: str) -> None:
    """Copy the latest checkpoint of each namespace, and what it needs, as `prune` would keep it."""
    take_turns(lane, [target])
    hold_chains(lane, target)
    is_whole = False
    while not is_whole:
        skeleton = skeleton_of(lane, source)
        needed = skeleton.needed(skeleton.latest().values())
        with lane.conn.begin_nested() as attempt:
            _copy_some(lane, source, target, needed, skeleton.blobs(needed))
            is_whole = needed <= places_of(lane, source)
            if not is_whole:  # some were deleted since the look
                attempt.rollback()
    collect(lane, target)


def _copy_some(
    lane: Lane,
    source: str,
    target: str,
    places: Iterable[Place],
    blobs: Iterable[tuple[str, str, str]],
) -> None:
    params = {
        **_from_to(source, target),
        "places": documents.encode([{"ns": ns, "id": id} for ns, id in places]),
        "versions": documents.encode(
            [{"ns": ns, "channel": channel, "version": version} for ns, channel, version in blobs]
        ),
    }
    # At once: either thread may be deleted from meanwhile, and the source be packed.
    for copy in lane.st.COPIES_OF_SOME:
        lane.conn.execute(copy, params)


def places_of(lane: Lane, thread_id: str) -> set[Place]:
    """Where a thread's checkpoints are."""
    return {Place(*row) for row in lane.conn.execute(lane.st.PLACES, {"thread_id": thread_id})}


def copying(*, latest_only: bool) -> Operation[[str, str], None]:
    """The operation that copies a thread whole, or only what its latest checkpoints need."""
    return copy_latest if latest_only else copy_thread


def strategy(name: str) -> Operation[[str], None]:
    """The operation of a pruning strategy, on one thread.

    Raises:
        InvalidConfig: for a name other than "keep_latest" and "delete".
    """
    operations = {"keep_latest": prune, "delete": delete_thread}
    if name not in operations:
        raise InvalidConfig(f"{name!r} is no pruning strategy: use one of {sorted(operations)}")
    return operations[name]


def skeleton_of(lane: Lane, thread_id: str) -> Skeleton:
    """What a thread consists of, from one snapshot.

    Raises:
        CorruptCheckpoint: for a checkpoint whose row was damaged.
    """
    skeleton = Skeleton()
    for row in lane.conn.execute(lane.st.SKELETON, {"thread_id": thread_id}).all():
        if row.kind == "checkpoint":
            place = Place(row.checkpoint_ns, row.checkpoint_id)
            texts = row.checkpoint, row.metadata
            try:
                skeleton.bones[place] = bone_of(place, row.parent_checkpoint_id, *texts)
            except ValueError:
                raise CorruptCheckpoint(f"checkpoints {(thread_id, *place)}", NO_MAPPING) from None
        elif row.kind == "blob":
            skeleton.valued.add((row.checkpoint_ns, row.channel, row.version))
        else:
            skeleton.with_sends.add(Place(row.checkpoint_ns, row.checkpoint_id))
    return skeleton


def _is_old(version: Any) -> bool:
    """Whether a checkpoint's sends are its parent's writes; not where its version is no number."""
    return isinstance(version, (int, float)) and version < SENDS_WITH_CHECKPOINT


def bone_of(place: Place, parent: str | None, checkpoint: str, metadata: str) -> Bone:
    """A checkpoint of its row, which is JSON text.

    Raises:
        ValueError: for what is no JSON object.
    """
    document, about = map(documents.mapping_of, (checkpoint, metadata))
    versions = document.get("channel_versions") or {}
    parents, deltas, run_id = (about.get(k) for k in ("parents", DELTA_COUNTERS, "run_id"))
    root = parents.get("") if isinstance(parents, dict) else None
    return Bone(
        parent=Place(place.checkpoint_ns, parent) if parent else None,
        versions={channel: str(version) for channel, version in versions.items()},
        inlined=frozenset(document.get("channel_values") or ()),
        deltas=frozenset(deltas if isinstance(deltas, dict) else ()),
        root=Place("", root) if root else None,
        run_id=run_id if isinstance(run_id, str) else None,
        sends_with_parent=_is_old(document.get("v")),
    )


class Reduction(NamedTuple):
    """What goes from a thread, and which of the remaining checkpoints become roots by that."""

    gone: set[Place]
    garbage: set[tuple[str, str, str]]
    roots: list[Place]


def reduction(skeleton: Skeleton, kept: Iterable[Place]) -> Reduction:
    """What `kept` checkpoints do not need; one whose parent goes becomes a root."""
    needed = skeleton.needed(kept)
    gone = skeleton.bones.keys() - needed
    garbage = skeleton.blobs(gone) - skeleton.blobs(needed)
    return Reduction(gone, garbage, [p for p in needed if skeleton.bones[p].parent in gone])


def collect(lane: Lane, thread_id: str) -> None:
    """Delete the chains of a thread that no blob refers to any more, of those that are held.

    A put that was adding to one has then stored its blob too.
    """
    lane.conn.execute(lane.st.DEAD_SEGMENTS, {"of_thread": thread_id})


def reduce(lane: Lane, thread_id: str, goes: Reduction) -> None:
    """Delete by key what goes from a thread: a statement per namespace, and per channel in it.

    Chains are locked first, then all in the order of the keys, as by others who delete or pack.
    """
    hold_chains(lane, thread_id)
    places: dict[str, list[str]] = defaultdict(list)
    for ns, checkpoint_id in goes.gone:
        places[ns].append(checkpoint_id)
    versions: dict[tuple[str, str], list[str]] = defaultdict(list)
    for ns, channel, version in goes.garbage:
        versions[ns, channel].append(version)
    at = [
        {"of_thread": thread_id, "of_ns": ns, "ids": documents.encode(ids)}
        for ns, ids in sorted(places.items())
    ]
    for params in at:
        lane.conn.execute(lane.st.WRITES_AT, params)
        lane.conn.execute(lane.st.CHECKPOINTS_AT, params)
    for (ns, channel), ids in sorted(versions.items()):
        named = {"of_thread": thread_id, "of_ns": ns, "of_channel": channel}
        lane.conn.execute(lane.st.BLOBS_AT, {**named, "ids": documents.encode(ids)})
    # One that somebody else had deleted may have been put again before its blobs went.
    for params in at:
        lane.conn.execute(lane.st.CHECKPOINTS_AT, params)
    collect(lane, thread_id)
    roots = [{"of_thread": thread_id, "of_ns": ns, "of_id": at} for ns, at in goes.roots]
    lane.execute_many(lane.st.WITHOUT_PARENT, roots)
