"""Sweeping: a policy says what of each thread stays, and the rest goes in small transactions.

A thread is first looked at, outside of any transaction, and the policy decides. What goes is then
deleted, a bounded number of checkpoints at a time, and children before their parents. So a sweep
can end at any moment: what is left is readable, and the next sweep goes on. Where the transaction
that deletes finds other checkpoints than those that were looked at, it decides anew what can go, so
what a run has saved since stays, with all it needs. The thread is locked meanwhile, so a second
sweep passes it by.

A sweep is a generator of steps, each an operation and its arguments, which is sent their results:
`upkeep` drives it in either colour. Nothing in this file knows which.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from ckpt_orm import documents
from ckpt_orm.lanes import Lane
from ckpt_orm.operations import Operation, changes, delete_thread, reads
from ckpt_orm.policies import Fact, Load, Retention, Thread, ThreadFound, aware, born_at
from ckpt_orm.retention import Place, Reduction, Skeleton, places_of, reduce, reduction, skeleton_of

R = TypeVar("R")

#: What a generator of operations yields: an operation, and what it is called with.
Step = tuple[Operation[Any, Any], tuple[Any, ...]]
#: A generator of steps, which is sent their results.
Steps = Generator[Step, Any, R]

#: Threads that are fetched at a time.
PAGE = 200

#: Checkpoints that one transaction deletes.
BATCH = 200


@dataclass(frozen=True)
class Swept:
    """What a sweep has deleted, or would delete.

    Args:
        threads: threads from which something went.
        ended: those of them that went whole.
        checkpoints: rows of checkpoints.
        writes: rows of their writes.
        blobs: rows of blobs that no remaining checkpoint refers to.
        segments: rows of chains that no remaining blob refers to.
        bytes: the payload of those writes, blobs and segments.
        skipped: threads that another sweep or deletion was at, or somebody was adding to, or a run
            had woken: the next sweep sees them.
    """

    threads: int = 0
    ended: int = 0
    checkpoints: int = 0
    writes: int = 0
    blobs: int = 0
    segments: int = 0
    bytes: int = 0
    skipped: int = 0

    def __add__(self, other: Swept) -> Swept:
        return Swept(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


class Progress(NamedTuple):
    """How far a sweep has come: checkpoints it has seen, of how many, and what went so far."""

    seen: int
    total: int
    swept: Swept


class Job(NamedTuple):
    """What goes from a thread in one transaction, and the checkpoints it had when that was decided.

    With a policy and a time, all of it goes, if the thread still ends by them.
    """

    thread_id: str
    goes: Reduction
    places: frozenset[Place]
    is_last: bool = False
    ends: tuple[Retention, datetime] | None = None


# --- the operations ---


@reads
def count(lane: Lane) -> int:
    """How many checkpoints there are."""
    return int(lane.conn.execute(lane.st.CHECKPOINTS).scalar_one())


@reads
def threads(lane: Lane, after: str | None) -> list[ThreadFound]:
    """The next threads that have a checkpoint."""
    statement = lane.st.threads(first=after is None)
    params = {"limit": PAGE} if after is None else {"limit": PAGE, "after": after}
    return [
        ThreadFound(*row[:3], *map(aware, row[3:]))
        for row in lane.conn.execute(statement, params).all()
    ]


@reads
def look(lane: Lane, thread_id: str, with_metadata: bool = False) -> Thread:
    """A thread as a policy sees it."""
    of_thread = {"thread_id": thread_id}
    # The skeleton first: what comes in between is then kept rather than overlooked.
    skeleton = skeleton_of(lane, thread_id)
    facts = dict.fromkeys(skeleton.bones, Fact(None, None, None))
    for row in lane.conn.execute(lane.st.facts(metadata=with_metadata), of_thread).all():
        born = born_at(row.checkpoint_id, row.created_at, row.ts)
        about = row.about if with_metadata else None
        facts[Place(*row[:2])] = Fact(born, row.source, _number(row.step), about)
    interrupted = {Place(*row) for row in lane.conn.execute(lane.st.INTERRUPTED, of_thread).all()}
    return Thread(skeleton, facts, interrupted)


@reads
def weigh(lane: Lane, thread_id: str, goes: Reduction | None) -> Swept:
    """What would go from a thread; all of it for None."""
    params: dict[str, Any] = {"of_thread": thread_id}
    if goes is not None:
        params["places"] = documents.encode([{"ns": ns, "id": id} for ns, id in goes.gone])
        params["garbage"] = documents.encode(
            [{"ns": ns, "channel": ch, "version": version} for ns, ch, version in goes.garbage]
        )
    statement = lane.st.WEIGHT_OF_THREAD if goes is None else lane.st.WEIGHT
    rows = {row.kind: row for row in lane.conn.execute(statement, params).all()}
    counts = {kind: int(row.rows) for kind, row in rows.items()}
    return Swept(bytes=sum(int(row.bytes) for row in rows.values()), **counts)


@changes
def delete(lane: Lane, jobs: Sequence[Job]) -> tuple[Swept, set[str]]:
    """Do some jobs in one transaction; also the threads that were left to another sweep."""
    swept, left = Swept(), set[str]()
    for job in jobs:
        if job.thread_id in left or not _is_held(lane, job.thread_id):
            left.add(job.thread_id)
        elif job.ends is None:
            swept += _reduced(lane, job)
        else:
            swept += _ended(lane, job.thread_id, *job.ends)
    return swept, left


def _is_held(lane: Lane, thread_id: str) -> bool:
    """Whether a thread is locked now; not where another sweep is at it, or somebody adds to it.

    Neither is waited for: a transaction of an application's may take long, and those who add to the
    threads before this one would wait for it too.
    """
    held = lane.conn.execute(lane.st.HOLD, {"thread_id": thread_id}).first()
    is_at_rest = lane.conn.execute(lane.st.AT_REST, {"of_thread": thread_id})
    return held is not None and bool(is_at_rest.scalar_one())


def _reduced(lane: Lane, job: Job) -> Swept:
    """Delete some checkpoints, except what others need by now."""
    thread_id, goes = job.thread_id, job.goes
    if places_of(lane, thread_id) != job.places:
        skeleton = skeleton_of(lane, thread_id)
        goes = reduction(skeleton, skeleton.bones.keys() - goes.gone)
    swept = weigh.function(lane, thread_id, goes)
    reduce(lane, thread_id, goes)
    return swept + Swept(threads=int(job.is_last))


def _ended(lane: Lane, thread_id: str, policy: Retention, now: datetime) -> Swept:
    """Delete a thread, if it is still as idle as it was when it was looked at."""
    thread = look.function(lane, thread_id)
    if not policy.ends(thread, now):
        return Swept(skipped=1)
    swept = weigh.function(lane, thread_id, None)
    with lane.conn.begin_nested() as attempt:
        reduce(lane, thread_id, Reduction(set(thread.skeleton.bones), set(), []))
        if places_of(lane, thread_id):
            attempt.rollback()  # one was saved since the look
            return Swept(skipped=1)
        delete_thread.function(lane, thread_id)
    return swept + Swept(threads=1, ended=1)


# --- the sweep ---


@dataclass(frozen=True)
class Plan:
    """What a sweep is asked to do."""

    policy: Retention
    now: datetime
    load: Load
    batch: int

    def look(self, thread_id: str) -> Steps[tuple[Thread, bool]]:
        """A thread, and whether it ends."""
        thread: Thread = yield look, (thread_id, self.policy.keep is not None)
        return thread, self.policy.ends(thread, self.now)

    def kept(self, thread: Thread) -> set[Place]:
        """What stays of a thread for its own sake."""
        return self.policy.kept(thread, self.now, self.load)


def sweep(
    plan: Plan, on_progress: Callable[[Progress], object] | None, *, dry_run: bool
) -> Steps[Swept]:
    """Sweep all threads, each once."""
    total: int = (yield count, ()) if on_progress else 0
    seen, swept, waiting, left = 0, Swept(), Waiting(plan.batch), set[str]()
    after: str | None = None
    while page := (yield threads, (after,)):
        for thread in page:
            seen += thread.checkpoints
            if not plan.policy.concerns(thread, plan.now):
                continue
            if dry_run:
                swept += yield from _predict(plan, thread.thread_id)
            else:
                for jobs in waiting.add((yield from _jobs(plan, thread.thread_id))):
                    swept += yield from _delete(jobs, left)
        after = page[-1].thread_id
        if on_progress:
            on_progress(Progress(min(seen, total), total, swept))
    for jobs in waiting.rest():
        swept += yield from _delete(jobs, left)
    if on_progress:
        on_progress(Progress(total, total, swept))
    return swept


def _delete(jobs: Sequence[Job], left: set[str]) -> Steps[Swept]:
    """Do jobs but those of threads that were left to another sweep, which finishes them."""
    swept: Swept
    swept, others = yield delete, ([job for job in jobs if job.thread_id not in left],)
    left |= others
    return swept + Swept(skipped=len(others))


class Waiting:
    """Jobs until they are a batch: what one transaction does."""

    def __init__(self, size: int) -> None:
        self.size, self.jobs, self.checkpoints = size, list[Job](), 0

    def add(self, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """Take jobs in; a batch comes out where they would be more than one."""
        for job in jobs:
            if self.checkpoints + len(job.goes.gone) > self.size:
                yield from self.rest()
            self.jobs.append(job)
            self.checkpoints += len(job.goes.gone)

    def rest(self) -> Iterator[list[Job]]:
        """What waits, if anything does."""
        jobs, self.jobs, self.checkpoints = self.jobs, [], 0
        if jobs:
            yield jobs


def _predict(plan: Plan, thread_id: str) -> Steps[Swept]:
    """What would go from a thread."""
    thread, ends = yield from plan.look(thread_id)
    goes = None if ends else reduction(thread.skeleton, plan.kept(thread))
    if goes is not None and not goes.gone:
        return Swept()
    swept: Swept = yield weigh, (thread_id, goes)
    return swept + Swept(threads=1, ended=int(ends))


def _jobs(plan: Plan, thread_id: str) -> Steps[list[Job]]:
    """What is to be done to a thread, a batch at most at a time."""
    thread, ends = yield from plan.look(thread_id)
    skeleton = thread.skeleton
    if not ends:
        jobs = _parts(plan, thread_id, skeleton, skeleton.needed(plan.kept(thread)))
        return [*jobs[:-1], *(job._replace(is_last=True) for job in jobs[-1:])]
    # The newest go last: a thread that is half deleted must not fall back to an older state.
    is_small = len(skeleton.bones) <= plan.batch
    newest = skeleton.bones if is_small else skeleton.needed(skeleton.latest().values())
    rest = Reduction(set(newest), set(), [])
    last = Job(thread_id, rest, frozenset(newest), is_last=True, ends=(plan.policy, plan.now))
    return [*_parts(plan, thread_id, skeleton, newest), last]


def _parts(plan: Plan, thread_id: str, skeleton: Skeleton, kept: Collection[Place]) -> list[Job]:
    """What goes from a thread, in parts that leave it readable one after the other."""
    gone = leaves_first(skeleton, skeleton.bones.keys() - set(kept))
    jobs: list[Job] = []
    for start in range(0, len(gone), plan.batch):
        places = frozenset(skeleton.bones)
        goes = reduction(skeleton, places - set(gone[start : start + plan.batch]))
        jobs.append(Job(thread_id, goes, places))
        left = {place: skeleton.bones[place] for place in places - goes.gone}
        skeleton = replace(skeleton, bones=left)
    return jobs


def leaves_first(skeleton: Skeleton, gone: set[Place]) -> list[Place]:
    """Checkpoints in an order in which each child comes before its parent."""
    order: dict[Place, None] = {}
    for place in gone:
        path: dict[Place, None] = {}
        here: Place | None = place
        while here is not None and here in gone and here not in order and here not in path:
            path[here] = None
            here = skeleton.bones[here].parent
        order.update(dict.fromkeys(reversed(path)))
    return list(reversed(order))


def _number(step: Any) -> int | None:
    try:
        return int(step)
    except (TypeError, ValueError):
        return None
