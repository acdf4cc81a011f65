"""The model that random histories are compared with: InMemorySaver, and what it does not have.

What it lacks is written down by the rules that ckpt_orm's docstrings give, in another way than
ckpt_orm does it. Where it is not what a checkpointer should be, `Model` says so and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from builders import config
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

#: Channels that are rebuilt from their writes.
DELTAS = ["log", "files"]

Place = tuple[str, str, str]


class Model(InMemorySaver):
    """What every backend must answer."""

    def list(  # type: ignore[override]
        self,
        config: Any,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Any = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        # InMemorySaver lists thread by thread and namespace by namespace, in the order in which
        # they were first used; newest first means by id. Its filter is equality, which Postgres'
        # containment is for scalars only.
        found = [
            saved
            for saved in super().list(config, before=before)
            if filter is None or contains(saved.metadata, filter)
        ]
        found.sort(key=lambda saved: place_of(saved.config)[:2])
        found.sort(key=lambda saved: place_of(saved.config)[2], reverse=True)
        yield from found[:limit]

    # --- what InMemorySaver does not have ---

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        for ns, saved in list(self.storage[source_thread_id].items()):
            for checkpoint_id, row in list(saved.items()):
                self.storage[target_thread_id][ns].setdefault(checkpoint_id, row)
        for (thread, *rest), row in list(self.blobs.items()):
            if thread == source_thread_id:
                self.blobs.setdefault((target_thread_id, *rest), row)  # type: ignore[arg-type]
        for (thread, ns, id), rows in list(self.writes.items()):
            if thread == source_thread_id:
                for key, row in list(rows.items()):
                    self.writes[target_thread_id, ns, id].setdefault(key, row)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        for thread in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            heads = {ns: max(ids) for ns, ids in self.storage[thread].items() if ids}
            self._keep(
                thread,
                [
                    (thread, ns, head)
                    for ns, head in heads.items()
                    if not self._is_over((thread, ns, head), heads.get(""))
                ],
            )

    def _is_over(self, head: Place, root: str | None) -> bool:
        """A call whose root checkpoint is stored and is not the latest any more."""
        thread, ns, _ = head
        started_from = (self._saved(head).metadata.get("parents") or {}).get("")
        return (
            ":" in ns.split("|")[-1]
            and started_from in self.storage[thread][""]
            and started_from != root
        )

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        for thread in list(self.storage):
            places = list(self._places(thread))
            self._keep(
                thread,
                [p for p in places if self._saved(p).metadata.get("run_id") not in run_ids],
            )

    def _keep(self, thread: str, kept: Iterable[Place]) -> None:
        """Keep checkpoints with the ancestors that they are rebuilt from."""
        needed: set[Place] = set()
        waiting = list(kept)
        while waiting:
            place = waiting.pop()
            needed.add(place)
            waiting += set(self._rebuilt_from(place)) - needed
        gone = set(self._places(thread)) - needed
        garbage = self._blobs_of(gone) - self._blobs_of(needed)
        for place in needed:
            found = self.storage[thread][place[1]]
            *row, parent = found[place[2]]
            found[place[2]] = (*row, None if (thread, place[1], parent) in gone else parent)  # type: ignore[assignment]
        for place in gone:
            del self.storage[thread][place[1]][place[2]]
            self.writes.pop(place, None)
        for blob in garbage:
            self.blobs.pop(blob, None)

    def _rebuilt_from(self, place: Place) -> Iterator[Place]:
        """The ancestors down to each delta channel's value, also those that do not know of it.

        As `get_delta_channel_history` goes: what was written to a channel before it had a version
        belongs to it.
        """
        for name in DELTAS:
            here = self._saved(place)
            if name not in here.checkpoint["channel_versions"]:
                continue
            while name not in here.checkpoint["channel_values"] and here.parent_config:
                here = self.get_tuple(here.parent_config)
                if here is None:
                    break
                yield place_of(here.config)

    def _saved(self, place: Place) -> Any:
        return self.get_tuple(config(*place))

    def _places(self, thread: str) -> Iterator[Place]:
        for ns, saved in self.storage[thread].items():
            for checkpoint_id in saved:
                yield thread, ns, checkpoint_id

    def _blobs_of(self, places: Iterable[Place]) -> set[Any]:
        return {
            (thread, ns, *named)
            for thread, ns, id in places
            for named in self._saved((thread, ns, id)).checkpoint["channel_versions"].items()
        }


def contains(document: Any, part: Any) -> bool:
    """Postgres' containment, for objects of scalars."""
    if isinstance(part, dict):
        return isinstance(document, dict) and all(
            name in document and contains(document[name], item) for name, item in part.items()
        )
    return type(part) is type(document) and bool(part == document)


def place_of(config: Any) -> Place:
    found = config["configurable"]
    return found["thread_id"], found["checkpoint_ns"], found["checkpoint_id"]
