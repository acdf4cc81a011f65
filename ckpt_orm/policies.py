"""Policies: what of a thread stays, decided in plain Python on what is known without its state.

A policy sees a thread as a skeleton, with a few facts about each checkpoint. It names what is kept
for its own sake; what that needs in turn is the skeleton's affair.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, get_args, get_type_hints
from uuid import UUID

from langgraph.checkpoint.base import CheckpointMetadata

from ckpt_orm.errors import InvalidConfig
from ckpt_orm.retention import Place, Skeleton, is_over

#: Turns the text of a checkpoint's metadata into what was put.
Load = Callable[[str], Mapping[str, Any]]

#: What LangGraph says of a checkpoint's metadata that it may be made by.
SOURCES: frozenset[str] = frozenset(get_args(get_type_hints(CheckpointMetadata)["source"]))

#: Between 1582, where a uuid6 counts from, and 1970: in ticks of 100 ns.
UUID_EPOCH = 0x01B21DD213814000


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What of a thread stays. Each option but the last three names checkpoints that are kept.

    What no option keeps goes, where `keep_last`, `max_age`, `every` or `keep` is given; without any
    of these, threads stay whole until `idle_after` ends them. Whatever is asked for, the latest
    checkpoint of each namespace stays, and what a kept checkpoint cannot be read without. The
    namespace of a finished subgraph call stays while the root checkpoint it started from is kept.

    The age of a checkpoint is that of its row by the database's clock; of rows that were adopted
    from another saver, which have no date, that of their uuid6 id, else of their `ts`. One whose
    age cannot be told is never old.

    Args:
        keep_last: the newest ones of each namespace.
        max_age: those that are younger.
        every: those of every n-th step.
        keep: those whose metadata it returns true for.
        keep_sources: those that were made by "input", "loop", "update" or "fork".
        keep_interrupted: those at which an `interrupt()` waits for its answer.
        idle_after: a thread whose newest checkpoint is older is deleted whole, unless it waits for
            the answer to an interrupt and `keep_interrupted` is true.
        thread_filter: the threads that are looked at: a pattern such as "user-*", or a function.

    Raises:
        InvalidConfig: for values out of range, and for a policy that would delete nothing.
    """

    keep_last: int | None = None
    max_age: timedelta | None = None
    every: int | None = None
    keep: Callable[[Mapping[str, Any]], object] | None = None
    keep_sources: frozenset[str] | set[str] | Sequence[str] = frozenset()
    keep_interrupted: bool = True
    idle_after: timedelta | None = None
    thread_filter: str | Callable[[str], object] | None = None

    def __post_init__(self) -> None:
        for name in ("keep_last", "every"):
            _check(name, getattr(self, name), int, 1, "a number from 1")
        for name in ("max_age", "idle_after"):
            _check(name, getattr(self, name), timedelta, timedelta(0), "a timedelta, not negative")
        if isinstance(self.keep_sources, str):
            raise InvalidConfig(f"keep_sources is a set: pass {{{self.keep_sources!r}}}")
        # One that no checkpoint has would keep nothing, and what it was meant for would be deleted.
        if strange := sorted(set(self.keep_sources) - SOURCES, key=str):
            raise InvalidConfig(
                f"keep_sources has {str(strange[0])[:40]!r}, which no checkpoint is made by: use "
                f"some of {sorted(SOURCES)}, or keep= for what your own metadata say"
            )
        if not self.trims and self.idle_after is None:
            raise InvalidConfig(
                "this policy would delete nothing: give keep_last, max_age, every, keep or "
                "idle_after"
            )

    @property
    def trims(self) -> bool:
        """Whether single checkpoints go, and not only whole threads."""
        limits = (self.keep_last, self.max_age, self.every, self.keep)
        return any(limit is not None for limit in limits)

    def concerns(self, thread: ThreadFound, now: datetime) -> bool:
        """Whether a thread has to be looked at: something may go from it."""
        some_undated = thread.dated < thread.checkpoints
        trims = (
            self.trims
            and thread.checkpoints > (self.keep_last or 1)
            and (self.max_age is None or some_undated or _older(self.max_age, thread.oldest, now))
        )
        ends = self.idle_after is not None and (
            some_undated or _older(self.idle_after, thread.newest, now)
        )
        return (trims or ends) and self._selects(thread.thread_id)

    def _selects(self, thread_id: str) -> bool:
        if isinstance(self.thread_filter, str):
            return fnmatchcase(thread_id, self.thread_filter)
        return self.thread_filter is None or bool(self.thread_filter(thread_id))

    def ends(self, thread: Thread, now: datetime) -> bool:
        """Whether a thread is deleted whole."""
        if self.idle_after is None or (self.keep_interrupted and thread.waiting()):
            return False
        return all(_older(self.idle_after, fact.born, now) for fact in thread.facts.values())

    def kept(self, thread: Thread, now: datetime, load: Load) -> set[Place]:
        """The checkpoints that stay for their own sake."""
        if not self.trims:
            return set(thread.skeleton.bones)
        kept = {place for place, fact in thread.facts.items() if self._keeps(fact, now, load)}
        kept |= thread.waiting() if self.keep_interrupted else set()
        for places in thread.namespaces().values():
            kept.update(places[: self.keep_last or 1])
        return kept - thread.finished(kept)

    def _keeps(self, fact: Fact, now: datetime, load: Load) -> bool:
        return (
            fact.source in self.keep_sources
            or (self.max_age is not None and not _older(self.max_age, fact.born, now))
            or (self.every is not None and fact.step is not None and fact.step % self.every == 0)
            or (self.keep is not None and fact.about is not None and self._wants(load(fact.about)))
        )

    def _wants(self, metadata: Mapping[str, Any]) -> bool:
        return self.keep is not None and bool(self.keep(metadata))


class Fact(NamedTuple):
    """What a policy asks of a checkpoint; its metadata only where `keep` wants to see it."""

    born: datetime | None
    source: str | None
    step: int | None
    about: str | None = None


class ThreadFound(NamedTuple):
    """A thread, and how many checkpoints it has; with a date only those that this saver stored."""

    thread_id: str
    checkpoints: int
    dated: int
    oldest: datetime | None
    newest: datetime | None


class Thread(NamedTuple):
    """A thread as a policy sees it."""

    skeleton: Skeleton
    facts: dict[Place, Fact]
    interrupted: set[Place]

    def waiting(self) -> set[Place]:
        """The interrupted checkpoints that the graph has not gone on from."""
        bones = self.skeleton.bones
        return self.interrupted & (bones.keys() - {bone.parent for bone in bones.values()})

    def namespaces(self) -> dict[str, list[Place]]:
        """The checkpoints of each namespace, newest first."""
        found: dict[str, list[Place]] = defaultdict(list)
        for place in sorted(self.skeleton.bones, reverse=True):
            found[place.checkpoint_ns].append(place)
        return found

    def finished(self, kept: set[Place]) -> set[Place]:
        """The checkpoints of subgraph calls that started from a root checkpoint that goes."""
        bones, found = self.skeleton.bones, self.namespaces()
        return {p for places in found.values() if is_over(bones, places[0], kept) for p in places}


# --- ages ---


def born_at(checkpoint_id: str, created_at: datetime | None, ts: str | None) -> datetime | None:
    """When a checkpoint was made, by what is known about it."""
    return aware(created_at) or minted(checkpoint_id) or _parsed(ts)


def minted(checkpoint_id: str) -> datetime | None:
    """The time in a uuid6; None for any other id."""
    try:
        uuid = UUID(checkpoint_id)
    except ValueError:
        return None
    if uuid.version != 6:
        return None
    # Its first 48 bits are the high ones of the time; the low 12 stand behind the version.
    ticks = (uuid.int >> 80 << 12 | uuid.int >> 64 & 0xFFF) - UUID_EPOCH
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=ticks // 10)


def _parsed(ts: str | None) -> datetime | None:
    try:
        return aware(datetime.fromisoformat(ts)) if ts else None
    except ValueError:
        return None


def stored_at(checkpoint_id: str, created_at: datetime | None) -> datetime | None:
    """When a checkpoint was stored, or else made.

    SQLite notes whole seconds, by the clock of the process that stores. The time in an id, which is
    from such a clock too, says where in that second it was.
    """
    made, stored = minted(checkpoint_id), aware(created_at)
    if stored is None or made is None or stored.microsecond:
        return stored or made
    return made if made.replace(microsecond=0) == stored else stored


def aware(at: datetime | None) -> datetime | None:
    """A time in UTC, as SQLite's are; a server tells them in the zone of the session."""
    if at is None:
        return None
    return at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc)


def _older(age: timedelta, at: datetime | None, now: datetime) -> bool:
    """Whether something is known to have happened longer ago than `age`."""
    return at is not None and now - at > age


def _check(name: str, value: Any, kind: type, least: Any, wanted: str) -> None:
    if value is None:
        return
    if not isinstance(value, kind) or isinstance(value, bool) or value < least:
        raise InvalidConfig(f"{name} is {value!r}: pass {wanted}")
