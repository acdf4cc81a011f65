"""The rows of a call as parameters: a few as one for each cell, and more of them as two.

These are their cells as JSON, and their bytes as one string, so that a statement is the same for
any number of rows. A cell of bytes is a place in the string, counted from 1 as SQL does; a row's
largest one has its size beside it, and the row's digest behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ckpt_orm import documents
from ckpt_orm.rows import Blob, PutRows, Tail, Write, WriteRows

#: So many rows are a few: to take them out of JSON would cost the server more than to store them.
FEW = 8


def few_of(rows: Sequence[Blob | Write], tails: Sequence[Tail] = ()) -> dict[str, Any]:
    """The parameters of a few blobs or writes, and of what is added to chains with blobs."""
    given: dict[str, Any] = {}
    for at, row in enumerate(rows):
        given |= zip(_names("rows", type(row)._fields, at), row, strict=True)
    for at, tail in enumerate(sorted(tails, key=_chain)):
        given |= zip(_names("tails", tail._fields, at), tail, strict=True)
        given[f"tails_place_{at}"] = at
    return given


@lru_cache(maxsize=256)
def _names(rows: str, cells: tuple[str, ...], at: int) -> tuple[str, ...]:
    """What the parameters of a row's cells are called."""
    return tuple(f"{rows}_{cell}_{at}" for cell in cells)


class Parcel:
    """Bytes that travel together."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def place(self, *parts: bytes | None) -> int:
        """Where the first of some parts begins, which are added one behind the other."""
        begin = self._size + 1
        for part in filter(None, parts):
            self._parts.append(part)
            self._size += len(part)
        return begin

    def whole(self) -> bytes:
        """All of it."""
        return b"".join(self._parts)


def parcel_of(rows: Sequence[Blob | Write], tails: Sequence[Tail] = ()) -> dict[str, Any]:
    """The parameters of blobs or writes, and of what is added to chains with blobs."""
    parcel = Parcel()
    params = {"rows": documents.encode([_row(parcel, row) for row in rows])}
    if tails:
        in_order = sorted(tails, key=_chain)
        params["tails"] = documents.encode([_tail(parcel, tail) for tail in in_order])
    return {**params, "payload": parcel.whole()}


def parcel_of_calls(puts: Sequence[PutRows], writes: Sequence[WriteRows]) -> dict[str, Any]:
    """The parameters of several calls; each row says what thread it belongs to."""
    parcel = Parcel()
    params: dict[str, Any] = {}
    if puts:
        params["puts"] = f"[{','.join(map(_put, puts))}]"
        params["rows"] = documents.encode(
            [{**put.key.thread(), **_row(parcel, blob)} for put in puts for blob in put.blobs]
        )
        tails = [(put.key, tail) for put in puts for tail in put.tails]
        tails.sort(key=lambda row: (row[0][:2], _chain(row[1])))
        params["tails"] = documents.encode(
            [{**key.thread(), **_tail(parcel, tail)} for key, tail in tails]
        )
    if writes:
        params["writes"] = documents.encode(
            [{**call.task(), **_row(parcel, write)} for call in writes for write in call.writes]
        )
    return {**params, "payload": parcel.whole()}


def _put(put: PutRows) -> str:
    """A checkpoint as a row; its documents are JSON already."""
    key = {**put.key._asdict(), "parent_checkpoint_id": put.parent_checkpoint_id}
    cells = documents.encode(key).removesuffix("}")
    return f'{cells},"checkpoint":{put.checkpoint},"metadata":{put.metadata}}}'


def _row(parcel: Parcel, row: Blob | Write) -> dict[str, Any]:
    cells = row._asdict()
    payload, digest, chain = cells.pop("blob"), cells.pop("digest", None), cells.pop("chain", None)
    cells["start"] = parcel.place(payload, digest)
    cells["size"] = None if payload is None else len(payload)
    if chain is not None:
        cells["chain"] = parcel.place(chain)
    return cells


def _chain(tail: Tail) -> tuple[str, bytes]:
    """By what tails are put in order: as chains are locked, whoever does."""
    return tail.channel, tail.chain


def _tail(parcel: Parcel, tail: Tail) -> dict[str, Any]:
    return {
        "channel": tail.channel,
        "version": tail.version,
        "chain": parcel.place(tail.chain),
        "start": tail.start,
        "follows": None if tail.follows is None else parcel.place(tail.follows),
        "place": parcel.place(tail.data, tail.digest),
        "size": len(tail.data),
    }
