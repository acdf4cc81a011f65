"""Removing: the saver's methods that delete and copy threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from langgraph.checkpoint.base import BaseCheckpointSaver

from ckpt_orm import operations, retention
from ckpt_orm.rows import check_key, id_of, key_of
from ckpt_orm.tenants import AnyRunner


class Removing(BaseCheckpointSaver[str]):
    """The part of the saver that deletes and copies."""

    _runner: AnyRunner

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread: all checkpoints, blobs and writes of all its namespaces.

        Writes that a run still saves afterwards are kept, as those of any checkpoint that is not
        stored yet are: end a thread's runs before deleting it.

        Args:
            thread_id: the thread; one that does not exist is no error.
        """
        self._runner.run(operations.delete_thread, _thread(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread`, for async callers."""
        await self._runner.arun(operations.delete_thread, _thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that some runs made, with their writes, in every thread.

        Kept are blobs that another checkpoint refers to, and the checkpoints of those runs that a
        remaining one needs to rebuild a DeltaChannel. One whose parent goes becomes a root.

        Args:
            run_ids: `run_id`s of the checkpoints' metadata; unknown ones are no error.

        Raises:
            TypeError: for a single string.
        """
        self._runner.run(retention.delete_for_runs, _strings("run_ids", run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, for async callers."""
        await self._runner.arun(retention.delete_for_runs, _strings("run_ids", run_ids))

    def copy_thread(
        self, source_thread_id: str, target_thread_id: str, *, latest_only: bool = False
    ) -> None:
        """Copy a thread: ids, parents, namespaces, writes and every ancestor.

        Rows that the target has already stay as they are, so copying again changes nothing.

        Args:
            source_thread_id: the thread to read; of one that does not exist nothing is copied,
                which is no error, and which `exists` tells.
            target_thread_id: the thread to add to.
            latest_only: copy what `prune` would keep: the latest checkpoint of each namespace, and
                the ancestors that it is rebuilt from.
        """
        threads = _thread(source_thread_id), _thread(target_thread_id)
        self._runner.run(retention.copying(latest_only=latest_only), *threads)

    async def acopy_thread(
        self, source_thread_id: str, target_thread_id: str, *, latest_only: bool = False
    ) -> None:
        """`copy_thread`, for async callers."""
        threads = _thread(source_thread_id), _thread(target_thread_id)
        await self._runner.arun(retention.copying(latest_only=latest_only), *threads)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete what threads no longer need, each in a transaction of its own.

        "keep_latest" keeps the latest checkpoint of each namespace, with its writes and blobs, and
        the ancestors that its DeltaChannels are rebuilt from. A namespace of a finished subgraph
        call goes with the root checkpoint it started from. "delete" keeps nothing.

        Args:
            thread_ids: the threads; unknown ones are no error.
            strategy: "keep_latest" or "delete".

        Raises:
            TypeError: for a single string.
            ValueError: for another strategy.
        """
        operation = retention.strategy(strategy)
        for thread_id in _strings("thread_ids", thread_ids):
            self._runner.run(operation, thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`prune`, for async callers."""
        operation = retention.strategy(strategy)
        for thread_id in _strings("thread_ids", thread_ids):
            await self._runner.arun(operation, thread_id)


def _thread(thread_id: object) -> str:
    return key_of({"configurable": {"thread_id": thread_id}}).thread_id


def _strings(name: str, values: Sequence[str]) -> list[str]:
    if isinstance(values, (str, bytes, Mapping)):
        raise TypeError(f"{name} is a sequence of ids, not a single one: pass [{name[:-1]}]")
    found = [id_of(value) for value in values]
    for value in found:
        check_key(value)
    return found
