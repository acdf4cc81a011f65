"""Finding: what can be told of threads and checkpoints without reading any state."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import INTERRUPT
from sqlalchemy import (
    CTE,
    ColumnElement,
    DateTime,
    Integer,
    LargeBinary,
    Select,
    Text,
    and_,
    cast,
    func,
    null,
    select,
    union_all,
)
from sqlalchemy.sql.base import Executable
from sqlalchemy.types import TypeEngine

from ckpt_orm.models import Models
from ckpt_orm.statements.dialects import Column, Dialect, constant, param
from ckpt_orm.statements.reading import Page
from ckpt_orm.statements.sweeping import Sweeping

#: The columns of a summary, with the type of the NULL that stands where one is not used.
TOLD: dict[str, TypeEngine[Any]] = {
    "kind": Text(),
    "thread_id": Text(),
    "checkpoint_ns": Text(),
    "checkpoint_id": Text(),
    "number": Integer(),
    "created_at": DateTime(timezone=True),
    "step": Text(),
    "source": Text(),
    "task_path": Text(),
    "task_id": Text(),
    "type": Text(),
    "blob": LargeBinary(),
}

#: Channels that say what happened to a task; a write to any other one is its output.
CONTROL = (*WRITES_IDX_MAP, "__error_source_node__")


class Finding(Sweeping):
    """The statements of `finding`."""

    def __init__(self, models: Models, dialect: Dialect) -> None:
        super().__init__(models, dialect)
        self._summaries: dict[tuple[bool, bool], Executable] = {}
        self._counts: dict[tuple[str, Page], Executable] = {}

    def count(self, shape: Page) -> Executable:
        """How many checkpoints there are under some conditions."""
        return self._found("count", shape, select(func.count()).select_from(self.checkpoints))

    def some(self, shape: Page) -> Executable:
        """A row where there is any."""
        return self._found("some", shape, select(constant(1)).limit(constant(1)))

    def _found(self, name: str, shape: Page, query: Select[Any]) -> Executable:
        if (name, shape) not in self._counts:
            found = query.select_from(self.checkpoints).where(*self._where(shape))
            self._counts[name, shape] = found
        return self._counts[name, shape]

    def summaries(self, *, filter: bool, after: bool) -> Executable:
        """A page of threads, in the order of their ids.

        Three kinds of rows: "namespace" (with the number of its checkpoints), "head" (the newest
        checkpoint of the outermost namespace, which is the root's), and "interrupt" (what a task of
        the head asks, and has not gone on from).
        """
        if (filter, after) not in self._summaries:
            page = self._matching(after) if filter else self._page(_after(after), self.checkpoints)
            head = self._heads(page)
            rows = (self._namespaces(page), self._told_of(head), self._interrupts(head))
            self._summaries[filter, after] = union_all(*rows)
        return self._summaries[filter, after]

    def _matching(self, after: bool) -> CTE:
        """The next threads with a checkpoint whose metadata contains a filter."""
        table = self.checkpoints.c
        thread_id = self.dialect.in_order(table.thread_id).label("thread_id")
        query = select(thread_id).where(self.dialect.contains(table.metadata, param("filter")))
        if after:
            query = query.where(thread_id.element > param("after"))
        return query.distinct().order_by(thread_id).limit(param("limit", Integer)).cte("page")

    def _namespaces(self, page: CTE) -> Select[Any]:
        """Each namespace, from one to the next by index: left to join, Postgres would rather read
        the whole table as long as it is a small one.
        """
        ns = self._end(func.min, "checkpoint_ns", page, "thread_id").label("checkpoint_ns")
        first = select(page.c.thread_id, ns).cte("space", recursive=True)
        following = self._end(func.min, "checkpoint_ns", first, "thread_id", after=True)
        more = select(first.c.thread_id, following).where(first.c.checkpoint_ns.is_not(None))
        space = first.union_all(more)
        number = self._end(func.count, "checkpoint_id", space, "thread_id", "checkpoint_ns")
        return (
            _told("namespace", **{column.name: column for column in space.c}, number=number)
            .select_from(space)
            .where(space.c.checkpoint_ns.is_not(None))
        )

    def _heads(self, page: CTE) -> CTE:
        """The ids of the newest checkpoints: each a look at the end of an index range."""
        outermost = self._end(func.min, "checkpoint_ns", page, "thread_id")
        root = select(page.c.thread_id, outermost.label("checkpoint_ns")).cte("root")
        newest = self._end(func.max, "checkpoint_id", root, "thread_id", "checkpoint_ns")
        return select(*root.c, newest.label("checkpoint_id")).cte("head")

    def _end(
        self, function: Any, name: str, of: CTE, *same: str, after: bool = False
    ) -> ColumnElement[Any]:
        """A function of a key column, over the checkpoints that agree with a row of `of`."""
        table = self.checkpoints.alias("one")
        column = self.dialect.in_order(table.c[name])
        query = select(function(column)).where(*(table.c[key] == of.c[key] for key in same))
        if after:
            query = query.where(column > of.c[name])
        return query.correlate(of).scalar_subquery()

    def _told_of(self, head: CTE) -> Select[Any]:
        table, member = self.checkpoints.c, self.dialect.member
        same = and_(*(table[column.name] == column for column in head.c))
        return _told(
            "head",
            **{column.name: column for column in head.c},
            created_at=table.created_at,
            step=cast(member(table.metadata, "step"), Text),
            source=cast(member(table.metadata, "source"), Text),
        ).select_from(head.join(self.checkpoints, same))

    def _interrupts(self, head: CTE) -> Select[Any]:
        write, other = self.writes.c, self.writes.alias("other").c
        same = and_(*(write[column.name] == column for column in head.c))
        task = ("thread_id", "checkpoint_ns", "checkpoint_id", "task_id")
        output = select(constant(1)).where(
            *(other[name] == write[name] for name in task),
            other.channel.not_in([constant(channel) for channel in CONTROL]),
        )
        columns = ("task_path", "task_id", "type", "blob")
        return (
            _told(
                "interrupt",
                thread_id=head.c.thread_id,
                **{name: write[name] for name in columns},
            )
            .select_from(head.join(self.writes, same))
            .where(
                write.idx == constant(WRITES_IDX_MAP[INTERRUPT]),
                write.channel == constant(INTERRUPT),
                ~output.exists(),
            )
        )


def _after(after: bool) -> Column | None:
    return param("after") if after else None


def _told(kind: str, **columns: Column) -> Select[Any]:
    """One branch of a summary: some columns, and NULL for the others."""
    given = {"kind": cast(constant(kind), Text), **columns}
    return select(
        *(given.get(name, cast(null(), type_)).label(name) for name, type_ in TOLD.items())
    )
