"""Upkeep: the methods with which an operator looks after a database, as part of the saver.

A sweep or a check is a generator of steps; it is driven here, in either colour. Between two steps
no connection is held.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from ckpt_orm import compacting, packing, sweeping, verifying
from ckpt_orm.codec import Codec
from ckpt_orm.columns import Filling, values_of
from ckpt_orm.errors import InvalidConfig
from ckpt_orm.logs import Shelf
from ckpt_orm.models import Models
from ckpt_orm.packing import Packed
from ckpt_orm.policies import Retention
from ckpt_orm.rows import Key, key_of
from ckpt_orm.sweeping import Plan, Progress, Steps, Swept
from ckpt_orm.tenants import AnyRunner
from ckpt_orm.verifying import Report

R = TypeVar("R")


class Upkeep(BaseCheckpointSaver[str]):
    """The part of the saver that no graph calls."""

    _runner: AnyRunner
    _fillings: tuple[Filling, ...]
    _models: Models

    def sweep(
        self,
        policy: Retention,
        *,
        dry_run: bool = False,
        batch: int = sweeping.BATCH,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> Swept:
        """Delete from all threads what a policy does not keep, in small transactions.

        May run beside live runs and beside other sweeps, and be stopped at any moment: every
        checkpoint that is left is as readable as before, and the next sweep goes on.

        Args:
            policy: what stays.
            dry_run: only tell what would go.
            batch: how many checkpoints a transaction deletes at most; a thread that is deleted
                whole goes in one with its newest checkpoints and what these need.
            on_progress: called with a `Progress` now and then.

        Returns:
            What went: checkpoints, writes, blobs, segments, and the bytes of their payloads.

        Raises:
            InvalidConfig: for a batch below 1.
        """
        steps = sweeping.sweep(self._plan(policy, batch), on_progress, dry_run=dry_run)
        return self._drive(steps)

    async def asweep(
        self,
        policy: Retention,
        *,
        dry_run: bool = False,
        batch: int = sweeping.BATCH,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> Swept:
        """`sweep`, for async callers."""
        steps = sweeping.sweep(self._plan(policy, batch), on_progress, dry_run=dry_run)
        return await self._adrive(steps)

    def verify(
        self,
        *,
        payloads: bool = True,
        repair: bool = False,
        grace: timedelta = verifying.GRACE,
        on_progress: Callable[[Report], object] | None = None,
    ) -> Report:
        """Check that what is stored fits together and can be read, thread by thread.

        May run beside live runs: each thread is looked at in one snapshot.

        Args:
            payloads: whether every payload is read, its digest checked, and decoded.
            repair: delete blobs and writes that no checkpoint needs; nothing else is changed.
            grace: how long ago the last sign of life of a thread must be for that. A run's writes
                come before their checkpoint.
            on_progress: called with the report so far after each thread.

        Returns:
            The report: `report.ok`, or what was found.
        """
        return self._drive(self._verify(payloads, repair, grace, on_progress))

    async def averify(
        self,
        *,
        payloads: bool = True,
        repair: bool = False,
        grace: timedelta = verifying.GRACE,
        on_progress: Callable[[Report], object] | None = None,
    ) -> Report:
        """`verify`, for async callers."""
        return await self._adrive(self._verify(payloads, repair, grace, on_progress))

    def compact(self, graph: Any, config: RunnableConfig) -> list[str]:
        """Store the values that a checkpoint's DeltaChannels are rebuilt to.

        It then needs no ancestors, which `prune` and `sweep` let go. Its id, versions and pending
        writes stay, so that runs go on; doing it again changes nothing.

        Args:
            graph: the compiled graph whose channels they are; for a subgraph's namespace, the
                subgraph.
            config: the checkpoint, the latest of its thread and namespace without an id.

        Returns:
            The channels whose value was stored; none where there is no such checkpoint.
        """
        found = self.get_tuple(config)
        channels = compacting.rebuilt(graph.channels, found) if found else []
        if found is None or not channels:
            return []
        at = found.config
        histories = self.get_delta_channel_history(config=at, channels=channels)
        blobs = compacting.encode(Codec(self.serde), graph.channels, found, histories)
        filled = values_of(self._fillings, config)
        done = self._runner.run(compacting.snapshot, key_of(at), blobs, filled)
        return channels if done else []

    async def acompact(self, graph: Any, config: RunnableConfig) -> list[str]:
        """`compact`, for async callers."""
        found = await self.aget_tuple(config)
        channels = compacting.rebuilt(graph.channels, found) if found else []
        if found is None or not channels:
            return []
        at = found.config
        histories = await self.aget_delta_channel_history(config=at, channels=channels)
        blobs = compacting.encode(Codec(self.serde), graph.channels, found, histories)
        filled = values_of(self._fillings, config)
        done = await self._runner.arun(compacting.snapshot, key_of(at), blobs, filled)
        return channels if done else []

    def pack(self, *, on_progress: Callable[[Packed], object] | None = None) -> Packed:
        """Store the values that are there as `growth="append"` would have, thread by thread.

        May run beside live runs, and be stopped at any moment; the next one goes on. Afterwards the
        official saver cannot read those values: `unpack` them for it.

        Args:
            on_progress: called with what was done so far after each thread.

        Returns:
            How many values are stored in another way now.

        Raises:
            InvalidConfig: where the segments have a column of the application's own that only the
                config of a run can fill.
        """
        return self._drive(self._pack(on_progress))

    async def apack(self, *, on_progress: Callable[[Packed], object] | None = None) -> Packed:
        """`pack`, for async callers."""
        return await self._adrive(self._pack(on_progress))

    def unpack(self, *, on_progress: Callable[[Packed], object] | None = None) -> Packed:
        """Store all values whole again, thread by thread, as `growth="whole"` does.

        Give that to the savers first, or they go on storing logs.

        Args:
            on_progress: called with what was done so far after each thread.

        Returns:
            How many values are stored in another way now.
        """
        return self._drive(packing.unpack(on_progress))

    async def aunpack(self, *, on_progress: Callable[[Packed], object] | None = None) -> Packed:
        """`unpack`, for async callers."""
        return await self._adrive(packing.unpack(on_progress))

    def _pack(self, on_progress: Callable[[Packed], object] | None) -> Steps[Packed]:
        *_, segments = self._models.tables
        of_segments = [filling for filling in self._fillings if filling.column.table is segments]
        dialect = self._runner.statements.dialect
        shelf = partial(Shelf, dialect.fold, dialect.grows_from, on=True)
        return packing.pack(shelf, values_of(of_segments, {}), on_progress)

    def _verify(
        self,
        payloads: bool,
        repair: bool,
        grace: timedelta,
        on_progress: Callable[[Report], object] | None,
    ) -> Steps[Report]:
        before = _ago(grace) if repair else None
        return verifying.verify(Codec(self.serde), before, on_progress, payloads=payloads)

    def _plan(self, policy: Retention, batch: int) -> Plan:
        if batch < 1:
            raise InvalidConfig(f"batch is {batch}: pass the checkpoints of a transaction, from 1")
        return Plan(policy, datetime.now(timezone.utc), self._load, batch)

    def _load(self, metadata: str) -> dict[str, Any]:
        return Codec(self.serde).load_document(Key("", "", None), metadata)

    def _drive(self, steps: Steps[R]) -> R:
        """Run the operations that a generator yields, and return what it returns."""
        result: Any = None
        try:
            while True:
                operation, arguments = steps.send(result)
                result = self._runner.run(operation, *arguments)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _adrive(self, steps: Steps[R]) -> R:
        """`_drive`, for async callers."""
        result: Any = None
        try:
            while True:
                operation, arguments = steps.send(result)
                result = await self._runner.arun(operation, *arguments)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def _ago(grace: timedelta) -> datetime:
    """When it began; the beginning of time, before which nothing was, where it is as long."""
    try:
        return datetime.now(timezone.utc) - grace
    except OverflowError:
        return datetime.min.replace(tzinfo=timezone.utc)
