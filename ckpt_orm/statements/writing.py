"""Writing: what `put`, `put_writes` and `delete_thread` store and remove.

On Postgres a call is a single statement, so one round trip and one transaction without BEGIN and
COMMIT. Its rows, where they are few, are parameters, and the statement another one for each number
of them. More of them travel as one JSON parameter, their payloads as one byte string in which each
row knows its place. So a statement is the same for any number of rows, and bytes are sent as bytes:
an array of them would go as escaped text with several drivers.

On SQLite, which has no writing CTE and no network, it is a statement per table, executed once for
each row: to take the rows out of JSON would cost it more than to store them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Enum,
    FromClause,
    Integer,
    LargeBinary,
    Table,
    Text,
    cast,
    column,
    delete,
    func,
    select,
    true,
    tuple_,
    values,
)
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.selectable import CTE
from sqlalchemy.types import TypeEngine

from ckpt_orm.columns import Filling, has_default, is_tenant
from ckpt_orm.once import once
from ckpt_orm.rows import EMPTY
from ckpt_orm.statements.dialects import DIGEST_SIZE, Column, constant, param
from ckpt_orm.statements.finding import Finding
from ckpt_orm.statements.reading import key_columns
from ckpt_orm.statements.scoping import tenant_param

#: What the rows of a thread and namespace have in common.
THREAD: dict[str, type[TypeEngine[Any]]] = {"thread_id": Text, "checkpoint_ns": Text}

#: The payload, named once: some drivers send a parameter as often as a statement has it. Postgres
#: puts the parameter itself wherever the column is asked for; it would copy all of it to keep it.
PAYLOAD = (
    # Said in words, since pg8000 leaves it to the server, which takes a text's `substr` then.
    select(cast(param("payload", LargeBinary), LargeBinary).label("payload"))
    .cte("parcel")
    .prefix_with("NOT MATERIALIZED")
)


class Writing(Finding):
    """The statements of `put`, `put_writes` and `delete_thread`."""

    @once
    def PUT(self) -> Executable:
        """A checkpoint with its blobs, where one statement can store both."""
        return self._put()

    def _put(self, few: int = 0) -> Executable:
        (both,) = self.dialect.together(self._new_blobs(few=few), self.CHECKPOINT)
        return both

    @once
    def CHECKPOINT(self) -> Any:
        """A checkpoint; one that is there already keeps its parent."""
        return self._checkpoint()

    def _checkpoint(self, *where: ColumnElement[bool], but: FromClause | None = None) -> Any:
        """A checkpoint out of parameters; or several out of rows, but those of some threads."""
        key = (*THREAD, "checkpoint_id", "parent_checkpoint_id")
        documents = ("checkpoint", "metadata")
        source, cells = None, params(*key, *documents)
        if but is not None:
            rows = self.dialect.rows("puts", **dict.fromkeys((*key, *documents), Text))
            source, cells = self._hurried(rows), {name: rows.c[name] for name in cells}
            where = (*where, not_among(but, cells))
        cells |= {name: self.dialect.document(cells[name]) for name in documents}
        insert = self._insert(self.checkpoints, source, *where, **cells)
        changed = {name: insert.excluded[name] for name in ("checkpoint", "metadata")}
        refilled = self._refilled(self.checkpoints)
        return insert.on_conflict_do_update(
            index_elements=key_columns(self.checkpoints), set_=changed | refilled
        )

    @once
    def BLOBS(self) -> Any:
        """Blobs; a version that is there already stays as it is."""
        return self._new_blobs()

    def _new_blobs(
        self, *where: ColumnElement[bool], but: FromClause | None = None, few: int = 0
    ) -> Any:
        keys = key_columns(self.blobs)
        return self._blobs(*where, but=but, few=few).on_conflict_do_nothing(index_elements=keys)

    @once
    def SNAPSHOTS(self) -> Any:
        """Blobs; a version that is there already stays, unless it is empty."""
        insert = self._blobs()
        return insert.on_conflict_do_update(
            index_elements=key_columns(self.blobs),
            set_={name: insert.excluded[name] for name in ("type", "blob", "digest")},
            where=self.blobs.c.type == constant(EMPTY),
        )

    def _blobs(
        self, *where: ColumnElement[bool], but: FromClause | None = None, few: int = 0
    ) -> Any:
        """Blobs of one thread and namespace; or of several, but those of some threads."""
        several, cells = but is not None, dict.fromkeys(("channel", "version", "type"), Text)
        source, row = self._rows(
            "rows",
            several=several,
            few=few,
            **(THREAD if several else {}),
            **cells,
            stop=BigInteger,
            chain=LargeBinary,
            digest=LargeBinary,
        )
        if but is not None:
            where = (*where, not_among(but, row))
        return self._insert(self.blobs, source, *where, **{**params(*THREAD), **row})

    @once
    def WRITES(self) -> Any:
        """Writes; of one that is there already, only a special channel's (idx < 0) is replaced."""
        return self._writes()

    def few_writes(self, *, rows: int) -> Any:
        """So many writes, where one statement can store them."""
        return self._made("writes", partial(self._writes, few=rows), rows)

    def _made(self, name: str, make: Callable[[], Any], *numbers: int) -> Any:
        """A statement of so many rows, made once."""
        made, key = self._few, (name, numbers)
        if key not in made:
            made[key] = make()
        return made[key]

    @once
    def _few(self) -> dict[tuple[str, tuple[int, ...]], Any]:
        return {}

    @once
    def ALL_WRITES(self) -> Any:
        """The writes of several calls."""
        return self._writes(several=True)

    @once
    def IN_A_HURRY(self) -> CTE:
        """What rows of several calls come from too, so that it is there before they lock anything.

        With it the statement fails rather than wait for another transaction for long.
        """
        milliseconds = constant(str(self.dialect.hurry))
        told = func.set_config(constant("lock_timeout"), milliseconds, true())
        return select(told.label("told")).cte("hurry")

    def _writes(self, *, several: bool = False, few: int = 0) -> Any:
        key = dict.fromkeys((*THREAD, "checkpoint_id", "task_id", "task_path"), Text)
        cells = {"idx": Integer, "channel": Text, "type": Text}
        name = "writes" if several else "rows"
        keys = key if several else {}
        source, row = self._rows(name, several=several, few=few, **keys, **cells)
        insert = self._insert(self.writes, source, **{**params(*key), **row})
        replaced = ("channel", "type", "blob", "task_path")
        return insert.on_conflict_do_update(
            index_elements=key_columns(self.writes),
            set_={name: insert.excluded[name] for name in replaced} | self._refilled(self.writes),
            where=insert.excluded.idx < constant(0),
        )

    @once
    def DELETE_THREAD(self) -> Sequence[Executable]:
        """All rows of a thread.

        Postgres does what is last first, and then goes backwards: so a put that continues chains
        is waited for at the first of them, and not at a row which it may want after that.
        """
        tables = (self.writes, self.blobs, self.checkpoints, self.segments)
        of_thread = (table.c.thread_id == param("thread_id") for table in tables)
        deletes = (
            delete(table).where(is_in) for table, is_in in zip(tables, of_thread, strict=True)
        )
        return self.dialect.together(*deletes)

    def _rows(
        self, name: str, *, several: bool = False, few: int = 0, **cells: type[TypeEngine[Any]]
    ) -> tuple[FromClause | None, dict[str, Column]]:
        """Where the rows of calls come from, None for parameters; their cells and blob.

        A digest among the cells is that of the blob, and travels behind it.
        """
        types = {**cells, "blob": LargeBinary}
        if self.dialect.stores_each:
            return None, {name: param(name, type_) for name, type_ in types.items()}
        if few:
            found = few_rows(name, few, types)
            return found, dict(found.c)
        digest = cells.pop("digest", None)
        rows = self.dialect.rows(name, **places(cells), start=Integer, size=Integer)
        start, size = rows.c.start, rows.c.size
        columns = at_places(rows, cells)
        columns["blob"] = part(start, size)
        if digest is not None:
            columns["digest"] = part(start + size, constant(DIGEST_SIZE))
        return with_payload(self._hurried(rows) if several else rows), columns

    def _hurried(self, rows: FromClause) -> FromClause:
        return rows.join(self.IN_A_HURRY, true())

    def _insert(
        self,
        table: Table,
        source: FromClause | None,
        *where: ColumnElement[bool],
        **columns: Column,
    ) -> Any:
        columns |= {filling.column.name: _filled(filling) for filling in self._fillings(table)}
        columns |= {c.name: tenant_param(c) for c in table.primary_key if is_tenant(c)}
        insert = self.dialect.insert(table)
        if source is None and not where:
            return insert.values(columns)
        rows = select(*columns.values()).where(*where)
        if source is not None:
            rows = rows.select_from(source)
        return insert.from_select(list(columns), rows)

    def _fillings(self, table: Table) -> list[Filling]:
        """The columns of an application's own that a call fills."""
        return [filling for filling in self.fillings if filling.column.table is table]

    def _refilled(self, table: Table) -> dict[str, Column]:
        """Those columns in a row that is there already, which stay where there is no value."""
        return {
            filling.column.name: func.coalesce(_typed(filling, filling.param), filling.column)
            for filling in self._fillings(table)
            if filling.rule
        }


def not_among(
    rows: FromClause, cells: Mapping[str, Column], names: Iterable[str] = THREAD
) -> ColumnElement[bool]:
    """Whether none of some rows has the same cells: by default, the same thread and namespace."""
    return tuple_(*(cells[name] for name in names)).not_in(select(*(rows.c[n] for n in names)))


def _filled(filling: Filling) -> Column:
    """A column's value: the config's, or its default in Python, or the one in the database."""
    column, default = filling.column, getattr(filling.column.default, "arg", None)
    by_server = getattr(column.server_default, "arg", None)
    values: list[Any] = [_typed(filling, filling.param)] if filling.rule else []
    if has_default(column):
        values.append(_typed(filling, filling.fallback))
    elif column.default is not None and column.default.is_clause_element:
        values.append(default)
    elif by_server is not None:
        # A literal without a type, as in the column's own DEFAULT, takes that of its neighbour.
        is_literal = isinstance(by_server, str)
        values.append(constant(by_server.replace("'", "''")) if is_literal else by_server)
    return func.coalesce(*values) if len(values) > 1 else values[0]


def _typed(filling: Filling, name: str) -> Column:
    """A parameter for a column; of an enumeration, which drivers send as text, in words."""
    found = param(name, filling.type)
    return cast(found, filling.type) if isinstance(filling.type, Enum) else found


def params(*names: str) -> dict[str, Column]:
    """Columns that take the parameters of their names."""
    return {name: param(name) for name in names}


def places(cells: Mapping[str, type[TypeEngine[Any]]]) -> dict[str, type[TypeEngine[Any]]]:
    """The types of cells as they travel: of a byte string, only its place in the payload."""
    return {name: Integer if type_ is LargeBinary else type_ for name, type_ in cells.items()}


def at_places(rows: FromClause, cells: Mapping[str, type[TypeEngine[Any]]]) -> dict[str, Column]:
    """The cells of rows; byte strings, which are ids and digests here, out of the payload."""
    return {
        name: part(rows.c[name], constant(DIGEST_SIZE)) if type_ is LargeBinary else rows.c[name]
        for name, type_ in cells.items()
    }


def with_payload(rows: FromClause) -> FromClause:
    """Rows beside the payload, of which they have parts."""
    return rows.join(PAYLOAD, true())


def few_rows(name: str, number: int, cells: Mapping[str, type[TypeEngine[Any]]]) -> FromClause:
    """So many rows, each of whose cells is a parameter."""
    columns = (column(cell, type_) for cell, type_ in cells.items())
    # Said in words, since not all drivers tell the server a parameter's type.
    rows = (
        tuple(cast(param(f"{name}_{cell}_{at}", type_), type_) for cell, type_ in cells.items())
        for at in range(number)
    )
    return values(*columns, name=name).data(list(rows))


def part(start: Column, size: Column) -> Column:
    """A part of the payload; NULL where its place or its size is."""
    return func.substr(PAYLOAD.c.payload, start, size, type_=LargeBinary)
