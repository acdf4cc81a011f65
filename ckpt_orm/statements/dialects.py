"""What the two dialects do differently, as data. No operation asks a connection for its name.

Documents travel as text in both directions, cast to and from JSONB by Postgres itself, so that no
JSON function of an application's engine ever sees one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    LargeBinary,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    column,
    false,
    func,
    literal_column,
    select,
    text,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSON, JSONB
from sqlalchemy.sql.base import Executable, ReadOnlyColumnCollection
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeEngine

from ckpt_orm.documents import contains_text
from ckpt_orm.errors import UnsupportedDialect
from ckpt_orm.growth import THRESHOLD

#: Bytes of a digest, which stands behind its payload, and of the id of a chain.
DIGEST_SIZE = CHAIN_SIZE = 16

Column = ColumnElement[Any]
Columns = ReadOnlyColumnCollection[str, Any]
#: What a table was joined to, and the joined table's columns.
Looked = tuple[FromClause, Columns]


@dataclass(frozen=True)
class Dialect:
    """What differs between SQLite and Postgres, as data; no operation asks for a name.

    Args:
        insert: the dialect's INSERT, which knows ON CONFLICT.
        document: JSON text as a document.
        member: an entry of a document, as a document.
        entries: the (key, value as text) pairs of a document.
        rows: the rows of the JSON array of objects bound under a name, by column and type.
        stores_each: whether rows are stored by a statement for each, rather than by one for all.
        together: statements that are executed as one, where the dialect can.
        elements: the (value) rows of the JSON array of strings bound under a name.
        among: whether a column is one of those strings, such that its index is used.
        lookup: a join by primary key, and the columns of the joined table, or those that are named.
        lookups: a join by the beginning of a primary key, for several rows.
        text: a document, or a scalar in one, as text.
        has_entry: whether an entry of a document has an entry of a given name.
        entry: that entry as text.
        joined: two byte strings as one.
        older: whether a checkpoint's document has a format version below a number.
        contains: whether a document contains another, as Postgres' `@>` decides.
        in_order: an id in binary order, whatever the database's collation is.
        steps: whether a checkpoint is read table by table, as several statements cost little; where
            each is a round trip, one is better.
        prepare_contains: makes `contains` available on a connection.
        single: the options of a connection that runs a single statement.
        several: the options of one that runs a transaction.
        fold: how many segments of a chain become one; None where reading many costs nothing, and
            where another transaction may be adding one.
        grows_from: from what size in bytes on a value is stored as what it grew by.
        forgives: whether a failed statement leaves its transaction usable.
        leaders: how many transactions store at a time what is called at a time.
        relief: how many, where they take long.
        hurry: after how many milliseconds such a transaction fails rather than wait for another
            one; None where there is only one at a time.
        begin: what opens a transaction that will write, None where BEGIN itself does.
        is_alone: whether whoever writes is alone, so that nothing has to be locked.
    """

    insert: Callable[[Table], Any]
    document: Callable[[Column], Column]
    entries: Callable[[Column, str], TableValuedAlias]
    rows: Callable[..., FromClause]
    stores_each: bool
    together: Callable[..., Sequence[Executable]]
    elements: Callable[[str], TableValuedAlias]
    among: Callable[[Column, str], ColumnElement[bool]]
    lookup: Callable[..., Looked]
    lookups: Callable[..., Looked]
    text: Callable[[Column], Column]
    member: Callable[[Column, str], Column]
    has_entry: Callable[[Column, str, Column], ColumnElement[bool]]
    entry: Callable[[Column, str, Column], Column]
    joined: Callable[[Column, Column], Column]
    older: Callable[[Column, int], ColumnElement[bool]]
    contains: Callable[[Column, Column], ColumnElement[bool]]
    in_order: Callable[[Column], Column]
    steps: bool
    prepare_contains: Callable[[Connection], None]
    single: dict[str, Any]
    several: dict[str, Any]
    forgives: bool
    fold: int | None
    grows_from: int
    begin: str | None
    is_alone: bool
    leaders: int
    relief: int
    hurry: int | None


def _register_contains(connection: Connection) -> None:
    # The name is ours; registering it again on the same connection replaces it by itself.
    driver: Any = connection.connection
    driver.create_function("ckpt_orm_contains", 2, contains_text, deterministic=True)


def _at(document: Column, key: str) -> Column:
    return document.op("->", return_type=JSONB())(text(f"'{key}'"))


def _lateral(left: FromClause, table: Table, same: ColumnElement[bool], *names: str) -> Looked:
    # Left to join as it likes, the planner guesses a hundred rows for a JSON object, and reads the
    # whole table to hash it; and a prepared statement keeps a plan made when the table was small.
    row = select(*_named(table, names)).where(same).limit(literal_column("1")).lateral()
    return left.join(row, true()), row.c


def _laterals(left: FromClause, table: Table, same: ColumnElement[bool], *names: str) -> Looked:
    # The same for several rows: OFFSET keeps the planner from joining as it likes. On a table that
    # was never analyzed it would read a thread's rows once for each of them.
    rows = select(*_named(table, names)).where(same).offset(literal_column("0")).lateral()
    return left.join(rows, true()), rows.c


def _named(table: Table, names: Sequence[str]) -> Sequence[ColumnElement[Any]]:
    return [table.c[name] for name in names] or list(table.c)


def _joined(left: FromClause, table: Table, same: ColumnElement[bool], *names: str) -> Looked:
    return left.join(table, same), table.c


def _recordset(name: str, **types: type[TypeEngine[Any]]) -> FromClause:
    return (
        func.json_to_recordset(cast(param(name), JSON))
        .table_valued(*(column(cell, type_) for cell, type_ in types.items()))
        .render_derived(name=name, with_types=True)
    )


def _elements(name: str) -> TableValuedAlias:
    array = cast(bindparam(name, type_=Text), JSONB)
    return func.jsonb_array_elements_text(array).table_valued("value").render_derived()


def _with_ctes(*statements: Any) -> Sequence[Executable]:
    *others, last = statements
    return [last.add_cte(*(other.cte(f"also_{i}") for i, other in enumerate(others)))]


POSTGRES = Dialect(
    insert=postgresql.insert,
    document=lambda value: cast(value, JSONB),
    entries=lambda document, key: (
        func.jsonb_each_text(_at(document, key)).table_valued("key", "value").render_derived()
    ),
    rows=_recordset,
    stores_each=False,
    together=_with_ctes,
    elements=_elements,
    # An array, which the index is asked for; a sub-select might be joined with a scan of the table.
    among=lambda column, name: (
        column == func.any(func.array(select(_elements(name).c.value).scalar_subquery()))
    ),
    lookup=_lateral,
    lookups=_laterals,
    text=lambda value: cast(value, Text),
    member=lambda document, key: document.op("->>", return_type=Text())(text(f"'{key}'")),
    has_entry=lambda document, key, name: func.coalesce(
        _at(document, key).op("?", is_comparison=True)(name), false()
    ),
    entry=lambda document, key, name: _at(document, key).op("->>", return_type=Text())(name),
    joined=lambda one, other: one.op("||", return_type=LargeBinary())(other),
    # Of other kinds than numbers, some are less than any.
    older=lambda document, number: and_(
        func.jsonb_typeof(_at(document, "v")) == constant("number"),
        _at(document, "v") < text(f"'{number}'::jsonb"),
    ),
    contains=lambda document, part: document.op("@>")(cast(part, JSONB)),
    in_order=lambda column: column.collate("C"),
    steps=False,
    prepare_contains=lambda connection: None,
    single={"isolation_level": "AUTOCOMMIT"},
    several={"isolation_level": "READ COMMITTED"},
    forgives=False,
    fold=None,
    grows_from=THRESHOLD,
    begin=None,
    is_alone=False,
    leaders=2,
    relief=4,
    hurry=250,
)


def _sqlite_entries(document: Column, key: str) -> TableValuedAlias:
    return func.json_each(document, constant(f"$.{key}")).table_valued("key", "value")


def _sqlite_entry(document: Column, key: str, name: Column, wanted: Column | None) -> Select[Any]:
    entries = _sqlite_entries(document, key)
    value = cast(entries.c.value, Text) if wanted is None else wanted
    # Nested where it is used: only its own table is its FROM.
    return select(value).where(entries.c.key == name).correlate_except(entries)


def _json_elements(name: str) -> TableValuedAlias:
    return func.json_each(bindparam(name, type_=Text)).table_valued("value")


def _json_rows(name: str, **types: type[TypeEngine[Any]]) -> FromClause:
    each = func.json_each(param(name)).table_valued("value")
    cells = (
        func.json_extract(each.c.value, constant(f"$.{cell}"), type_=type_).label(cell)
        for cell, type_ in types.items()
    )
    return select(*cells).select_from(each).subquery(name)


SQLITE = Dialect(
    insert=sqlite.insert,
    document=lambda value: value,
    entries=_sqlite_entries,
    rows=_json_rows,
    stores_each=True,
    together=lambda *statements: statements,
    elements=_json_elements,
    among=lambda column, name: column.in_(select(_json_elements(name).c.value)),
    lookup=_joined,
    lookups=_joined,
    text=lambda value: cast(value, Text),
    member=lambda document, key: func.json_extract(document, constant(f"$.{key}")),
    has_entry=lambda document, key, name: _sqlite_entry(
        document, key, name, literal_column("1")
    ).exists(),
    entry=lambda document, key, name: _sqlite_entry(document, key, name, None).scalar_subquery(),
    joined=lambda one, other: cast(one.op("||")(other), LargeBinary),
    older=lambda document, number: func.json_extract(document, constant("$.v")) < text(str(number)),
    contains=lambda document, part: func.ckpt_orm_contains(cast(document, Text), part) == text("1"),
    in_order=lambda column: column,
    steps=True,
    prepare_contains=_register_contains,
    single={},
    several={},
    forgives=True,
    fold=16,
    # To write a few pages again takes it no longer than to look for what is new in them.
    grows_from=4 * THRESHOLD,
    # A transaction that reads first and then writes would fail at once when another one has
    # written in between; one that says so at the start waits its turn.
    begin="BEGIN IMMEDIATE",
    is_alone=True,
    leaders=1,
    relief=1,
    hurry=None,
)

DIALECTS = {"postgresql": POSTGRES, "sqlite": SQLITE}


def dialect_named(name: str) -> Dialect:
    """The entry of a SQLAlchemy dialect.

    Raises:
        UnsupportedDialect: for a database other than the two.
    """
    try:
        return DIALECTS[name]
    except KeyError:
        raise UnsupportedDialect(name) from None


def constant(value: str | int) -> Column:
    """A word or number of this package in a statement's own text.

    As a bound parameter it would be handed over and sent with each execution.
    """
    return literal_column(f"'{value}'" if isinstance(value, str) else str(value))


def param(name: str, type_: type[TypeEngine[Any]] | TypeEngine[Any] = Text) -> Column:
    """A parameter of plain type: one that took a key column's type would bring its collation along,
    and an index of another collation, as adopted tables have, would not be used.
    """
    return bindparam(name, type_=type_)
