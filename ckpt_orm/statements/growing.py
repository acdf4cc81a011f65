"""Growing: what `put` stores where a value shares its bytes with earlier versions of its channel.

A chain of segments is never changed but at its end, and only by whoever knows all of it: a segment
follows the one whose digest, which is that of the whole chain so far, it names. Two that follow the
same one have the same key, so one of them is not stored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    LargeBinary,
    Select,
    Text,
    and_,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.sql.base import Executable
from sqlalchemy.types import TypeEngine

from ckpt_orm.once import once
from ckpt_orm.statements.dialects import DIGEST_SIZE, Column, constant, param
from ckpt_orm.statements.reading import key_columns
from ckpt_orm.statements.writing import (
    PAYLOAD,
    THREAD,
    Writing,
    at_places,
    few_rows,
    not_among,
    params,
    part,
    places,
    with_payload,
)

#: The cells of a tail without its data, and its digest.
CELLS: dict[str, type[TypeEngine[Any]]] = {
    "channel": Text,
    "version": Text,
    "chain": LargeBinary,
    "start": BigInteger,
    "follows": LargeBinary,
}


class Tails(NamedTuple):
    """Segments that are to be stored.

    Args:
        rows: where they come from, None for parameters.
        source: the same, beside the payload where their bytes are parts of it.
        cells: their cells.
        row: their data and digest.
    """

    rows: FromClause | None
    source: FromClause | None
    cells: dict[str, Column]
    row: dict[str, Column]


class Statements(Writing):
    """All statements of one set of tables on one dialect; `statements_for` makes and keeps them."""

    # --- where one statement stores all ---

    @once
    def PUT_GROWING(self) -> Any:
        """A checkpoint with its blobs, and what some of them add to chains; or else nothing of it.

        It returns how many segments were added, of which `expected` are. It is fewer where a chain
        has moved, and where a version is there whose chain would be started: it may be on its way
        out. Those that were added stay: nothing refers to them.
        """
        return self._put_growing(self._new_segments(self._tails()), blobs=0)

    def few_put(self, *, blobs: int, tails: int) -> Any:
        """A checkpoint with so many blobs, and tails, where one statement can store them."""

        def make() -> Any:
            if not tails:
                return self._put(few=blobs)
            return self._put_growing(self._new_segments(self._tails(few=tails)), blobs)

        return self._made("put", make, blobs, tails)

    def _put_growing(self, segments: Any, blobs: int) -> Any:
        added = segments.returning(constant(1)).cte("added")
        number = select(func.count()).select_from(added).scalar_subquery()
        all_are = number == param("expected", Integer)
        stored = self._new_blobs(all_are, few=blobs).cte("blobs")
        # Executed from the last one on, as `together` does: the checkpoint first. Whoever deletes
        # it is waited for there, so that none of its blobs is left out for one that goes with it.
        return select(number).add_cte(stored, self._checkpoint(all_are).cte("stored"))

    @once
    def PUTS(self) -> Any:
        """Several puts at once, but for those of which a chain has moved.

        It returns the threads and namespaces of these, of which nothing is stored that is referred
        to.
        """
        tails = self._tails(several=True)
        # A chain's copy under another thread ends in the same digest, until either goes on.
        names = (*THREAD, "channel", "chain", "start", "digest")
        added = self._new_segments(tails).returning(*(self.segments.c[name] for name in names))
        cells = {**tails.cells, **tails.row}
        left = select(*(cells[name] for name in THREAD)).where(
            not_among(added.cte("added"), cells, names)
        )
        moved = (left if tails.source is None else left.select_from(tails.source)).cte("moved")
        blobs, stored = self._new_blobs(but=moved), self._checkpoint(but=moved)
        return select(moved).add_cte(blobs.cte("blobs"), stored.cte("stored"))

    @once
    def STORES(self) -> Any:
        """Several puts, and the writes of several calls."""
        return self.PUTS.add_cte(self.ALL_WRITES.cte("written"))

    @once
    def SEGMENTS_TOLD(self) -> Any:
        """Segments, with a row returned for each that was stored."""
        return self.SEGMENTS.returning(constant(1))

    # --- where each row has a statement, and whoever writes is alone ---

    @once
    def TIP(self) -> Executable:
        """The digest of a chain's last segment."""
        return self._last(self.segments, self._tails().cells)

    @once
    def NEXT_SEGMENT(self) -> Any:
        """A segment behind the one that is known to be the last."""
        return self._segments(self._tails())

    @once
    def FOLDING_SEGMENT(self) -> Any:
        """One in place of the last ones; those after its start, `FOLDED`, are to be deleted."""
        insert = self._segments(self._tails())
        return insert.on_conflict_do_update(
            index_elements=key_columns(self.segments),
            set_={name: insert.excluded[name] for name in ("data", "digest")},
        )

    @once
    def FOLDED(self) -> Executable:
        """What a chain has between a segment's start and its end, to delete."""
        segment = self.segments.c
        of_chain = ("thread_id", "checkpoint_ns", "channel")
        return delete(self.segments).where(
            *(segment[name] == param(name) for name in of_chain),
            segment.chain == param("chain", LargeBinary),
            segment.start > param("start", BigInteger),
            segment.start < param("stop", BigInteger),
        )

    # --- both ---

    @once
    def PACKED(self) -> Executable:
        """A version that is stored whole, to be made a log."""
        return self._restored(self.blobs.c.chain.is_(None))

    @once
    def UNPACKED(self) -> Executable:
        """A version that is a log, to be stored whole."""
        return self._restored(self.blobs.c.chain.is_not(None))

    def _restored(self, still: ColumnElement[bool]) -> Executable:
        blob = self.blobs.c
        same = blob.digest.is_not_distinct_from(param("was_digest", LargeBinary))
        at = and_(self._named(self.blobs, "of_channel", "of_version"), same)
        names = ("type", "blob", "chain", "stop")
        new = {name: param(f"new_{name}", self.blobs.c[name].type) for name in names}
        return update(self.blobs).where(at, still).values(new)

    @once
    def SEGMENTS(self) -> Any:
        """Segments that start or continue a chain; where they cannot, they are not stored.

        Where each row has a statement they only start one.
        """
        return self._new_segments(self._tails())

    def _new_segments(self, tails: Tails) -> Any:
        where = self._starts(tails.cells)
        if tails.rows is not None:
            where = or_(where, self._follows(tails))
        insert = self._segments(tails, where)
        return insert.on_conflict_do_nothing(index_elements=key_columns(self.segments))

    def _segments(self, tails: Tails, *where: ColumnElement[bool]) -> Any:
        names = (*THREAD, "channel", "chain", "start")
        cells = {name: tails.cells[name] for name in names}
        return self._insert(self.segments, tails.source, *where, **cells, **tails.row)

    def _tails(self, *, several: bool = False, few: int = 0) -> Tails:
        """Segments of one thread and namespace, which are parameters, or of several."""
        cells = {**THREAD, **CELLS} if several else CELLS
        if self.dialect.stores_each:
            row = {"data": param("data", LargeBinary), "digest": param("digest", LargeBinary)}
            cells = {**THREAD, **CELLS}
            given = {name: param(name, type_) for name, type_ in cells.items()}
            return Tails(None, None, given, row)
        if few:
            types = {**cells, "data": LargeBinary, "digest": LargeBinary, "place": Integer}
            # Named once, and not kept: as `PAYLOAD`.
            named = select(few_rows("tails", few, types)).cte("few")
            found = named.prefix_with("NOT MATERIALIZED")
            row = {name: found.c[name] for name in ("data", "digest")}
            given = {**params(*THREAD), **{name: found.c[name] for name in cells}}
            return Tails(found, found, given, row)
        rows = self.dialect.rows("tails", **places(cells), place=Integer, size=Integer)
        if several:  # asked for at several places
            rows = select(rows).select_from(self._hurried(rows)).cte("tail")
        place, size = rows.c.place, rows.c.size
        row = {"data": part(place, size), "digest": part(place + size, constant(DIGEST_SIZE))}
        given = {**params(*THREAD), **at_places(rows, cells)}
        return Tails(rows, with_payload(rows), given, row)

    def _starts(self, cells: dict[str, Column]) -> ColumnElement[bool]:
        """Whether a tail is the beginning of a chain, for a version that is not there otherwise."""
        blob = self.blobs.c
        stored = exists().where(
            *(blob[name] == cells[name] for name in THREAD),
            blob.channel == cells["channel"],
            blob.version == cells["version"],
            blob.chain.is_distinct_from(cells["chain"]),
        )
        return and_(cells["follows"].is_(None), ~stored)

    def _follows(self, tails: Tails) -> ColumnElement[bool]:
        """Whether a chain ends in the digest that a tail is made for.

        Its first segment is locked, as it is before a chain is deleted. Whoever has waited for that
        may see a last one that no longer is: what follows it has the key of what is to be added.
        """
        rows: Any = tails.rows
        source: Any = tails.source
        digest = self._last(self.segments.alias("last"), tails.cells)
        first = self.segments.alias("first")
        at_start = and_(self._is_of(first, tails.cells), first.c.start == constant(0))
        held = (
            select(rows.c.place)
            .select_from(source.join(first, at_start))
            .order_by(rows.c.place)
            .with_for_update(of=first)
            .cte("held")
        )
        return and_(
            rows.c.place.in_(select(held.c.place)),
            digest.correlate(rows, PAYLOAD).scalar_subquery() == tails.cells["follows"],
        )

    def _last(self, segments: FromClause, cells: dict[str, Column]) -> Select[Any]:
        """The digest of the last segment of a tail's chain."""
        last_first = segments.c.start.desc()
        of_chain = select(segments.c.digest).where(self._is_of(segments, cells))
        return of_chain.order_by(last_first).limit(constant(1))

    def _is_of(self, segments: FromClause, cells: dict[str, Column]) -> ColumnElement[bool]:
        """Whether a segment belongs to the chain of a tail."""
        return and_(
            *(segments.c[name] == cells[name] for name in (*THREAD, "channel")),
            segments.c.chain == cells["chain"],
        )
