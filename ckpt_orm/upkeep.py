"""Upkeep: the methods with which an operator looks after a database, as part of the saver.

A sweep or a check is a generator of steps; it is driven here, in either colour. Between two steps
no connection is held.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol

from ckpt_orm import sweeping
from ckpt_orm.codec import Codec
from ckpt_orm.errors import InvalidConfig
from ckpt_orm.guests import GuestRunner
from ckpt_orm.policies import Retention
from ckpt_orm.rows import Key
from ckpt_orm.runners import Runner
from ckpt_orm.sweeping import Plan, Progress, Steps, Swept

R = TypeVar("R")


class Upkeep:
    """The part of the saver that no graph calls."""

    serde: SerializerProtocol
    _runner: Runner | GuestRunner

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
            What went: checkpoints, writes, blobs, and the bytes of the latter two's payloads.

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
