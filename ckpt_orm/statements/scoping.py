"""Scoping: no statement of a layout with tenants leaves without every table in it restricted.

The statements are those of any layout, and know nothing of this file. What `statements_for` hands
out stands in front of them. Whatever is asked of it is gone through first: each SELECT, UPDATE and
DELETE in it, however deep, gets a condition for each table it names, which stands in the ON where
the table is on the far side of an outer join. An INSERT carries the column (see `writing`). A new
statement is scoped by being one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any

from sqlalchemy import (
    Alias,
    Column,
    ColumnElement,
    Delete,
    FromClause,
    Join,
    Select,
    Table,
    Update,
    and_,
    bindparam,
)
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.elements import BooleanClauseList

from ckpt_orm import scope
from ckpt_orm.columns import plain
from ckpt_orm.errors import WrongTenant

#: The parameter that carries the tenant.
TENANT = "of_tenant"


def tenant_param(column: Column[Any]) -> ColumnElement[Any]:
    """The tenant that is worked for when the statement is executed."""
    return bindparam(TENANT, type_=plain(column.type), callable_=scope.current)


class ScopedStatements:
    """The statements of a layout with tenants, each restricted to the one that is worked for.

    Args:
        statements: the statements, which are changed in place: each is nobody else's.
        tenants: the column of the tenant in each table.
    """

    def __init__(self, statements: Any, tenants: Mapping[Table, Column[Any]]) -> None:
        self._statements, self._tenants = statements, tenants
        self._done: set[Executable] = set()
        self._turn = Lock()

    def __getattr__(self, name: str) -> Any:
        found = self._scoped(getattr(self._statements, name))
        setattr(self, name, found)
        return found

    def _scoped(self, found: Any) -> Any:
        """A statement, several, or a method that returns one."""
        if isinstance(found, Table):
            raise WrongTenant("a statement on tenants' tables is made here, or it is not scoped")
        if isinstance(found, Executable):
            return self._once(found)
        if isinstance(found, (list, tuple)):
            return type(found)(map(self._scoped, found)) if type(found) in (list, tuple) else found
        return self._scoping(found) if callable(found) else found

    def _scoping(self, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._scoped(method(*args, **kwargs))

    def _once(self, statement: Executable) -> Executable:
        if statement not in self._done:
            with self._turn:
                restrict(statement, self._tenants)
                self._done.add(statement)
        return statement


def restrict(statement: Any, tenants: Mapping[Table, Column[Any]]) -> None:
    """Give each part of a statement its conditions, unless it has them."""
    for part in list(visitors.iterate(statement)):
        if isinstance(part, Select):
            sources: Sequence[FromClause] = part.get_final_froms()
        elif isinstance(part, (Update, Delete)):
            sources = [part.table]
        else:
            continue
        for source in sources:
            part._where_criteria += _missing(part._where_criteria, source, tenants)


def _missing(
    criteria: Sequence[ColumnElement[Any]],
    source: FromClause,
    tenants: Mapping[Table, Column[Any]],
) -> tuple[ColumnElement[bool], ...]:
    """The conditions on the tables of a FROM that are not among some criteria."""
    return tuple(c for c in _conditions(source, tenants) if not _demand(criteria, c))


def _conditions(
    source: FromClause, tenants: Mapping[Table, Column[Any]]
) -> Iterator[ColumnElement[bool]]:
    """What the tables of a FROM are restricted by; that of an outer join is put into its ON."""
    if isinstance(source, Join):
        yield from _conditions(source.left, tenants)
        if source.isouter and source.onclause is not None:
            missing = _missing((source.onclause,), source.right, tenants)
            source.onclause = and_(source.onclause, *missing)
        else:
            yield from _conditions(source.right, tenants)
    else:
        table = source.element if isinstance(source, Alias) else source
        if isinstance(table, Table) and table in tenants:
            column = tenants[table]
            yield source.c[column.key] == tenant_param(column)


def _demand(criteria: Sequence[ColumnElement[Any]], wanted: ColumnElement[bool]) -> bool:
    """Whether criteria that all have to hold contain a condition."""
    return any(wanted.compare(one) or _demand(_conjuncts(one), wanted) for one in criteria)


def _conjuncts(criterion: ColumnElement[Any]) -> Sequence[ColumnElement[Any]]:
    """What has to hold all together for a criterion to hold."""
    is_and = isinstance(criterion, BooleanClauseList) and criterion.operator is operators.and_
    return criterion.clauses if is_and else ()
