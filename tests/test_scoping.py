"""Every statement of a layout with tenants restricts every table in it, told by its text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Table, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.sql.base import Executable
from tenancy import MODELS

from ckpt_orm import TenantMixin, WrongTenant, declare, scope
from ckpt_orm.models import DEFAULT, Models
from ckpt_orm.statements import Page, Statements, statements_for
from ckpt_orm.statements.scoping import restrict

DIALECTS: dict[str, Any] = {"sqlite": sqlite.dialect(), "postgresql": postgresql.dialect()}
NAMES = {table.name for table in MODELS.tables}
SHAPES = [Page(*flags) for flags in product([False, True], repeat=len(Page._fields))]


#: What is only for a dialect that stores all at once, beside others, or row by row.
AT_ONCE = {"PUT", "PUT_GROWING", "TURNS", "TURN_AT_ALL", "few_put", "few_writes"}
BY_ROW = {"TIP", "NEXT_SEGMENT", "FOLDING_SEGMENT", "FOLDED"}


def every(st: Statements) -> Iterator[tuple[str, Executable]]:
    """Each statement there is: those that have a name, and those of each shape of a call."""
    others = AT_ONCE if st.dialect.stores_each else BY_ROW
    for name in (name for name in dir(Statements) if not name.startswith("_")):
        if name in others:
            continue
        found = getattr(st, name)
        for number, one in enumerate(found if isinstance(found, (list, tuple)) else [found]):
            if isinstance(one, Executable):
                yield f"{name}-{number}", one
        if callable(found) and name.islower():
            yield from ((f"{name}{given}", found(*given[0], **given[1])) for given in calls(name))


def calls(name: str) -> Iterator[tuple[tuple[Any, ...], dict[str, int]]]:
    """Each way to call a method: with each shape, flags set or not, for one row and for two."""
    parameters = list(inspect.signature(getattr(Statements, name)).parameters.values())[1:]
    if [p.name for p in parameters] == ["shape"]:
        yield from (((shape,), {}) for shape in SHAPES)
        return
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters), name
    ways = [{"bool": (False, True), "int": (1, 2)}[p.annotation] for p in parameters]
    for given in product(*ways):
        yield (), dict(zip((p.name for p in parameters), given, strict=True))


QUERY = re.compile(r"\s*(SELECT|DELETE|UPDATE|INSERT|WITH)")


def scopes(text: str) -> Iterator[str]:
    """The text of each pair of parentheses, and of what is outside, without what is nested."""
    stack = [""]
    for sign in text:
        if sign == "(":
            stack.append("")
        elif sign == ")":
            inner = stack.pop()
            yield inner
            # What has no query of its own, such as a condition, belongs to what is around it.
            stack[-1] += "()" if QUERY.match(inner) else f"({inner})"
        else:
            stack[-1] += sign
    assert len(stack) == 1
    yield stack[0]


LONGEST_FIRST = "|".join(sorted(NAMES, key=len, reverse=True))
NAMED = re.compile(
    rf"(?:FROM|JOIN|UPDATE|DELETE FROM|,)\s+({LONGEST_FIRST})\b(?!\.)"
    r"(?:\s+AS\s+(\w+))?"
)


def unrestricted(text: str) -> list[str]:
    """What of our tables a statement reads or changes without a condition on the tenant."""
    text = re.sub(r"\s+", " ", text).replace('"', "")
    found = []
    for one in scopes(text):
        for part in re.split(r"\b(?:UNION ALL|UNION)\b", one):
            for table, alias in NAMED.findall(part):
                name = alias or table
                is_restricted = rf"\b{name}\.tenant_id = (\?|%\(of_tenant\)s)"
                if not re.search(is_restricted, part):
                    found.append(name)
    return found


def inserts_without(text: str) -> list[str]:
    """The tables that a statement inserts into without the tenant."""
    into = re.findall(r"INSERT INTO (\w+) \(([^)]*)\)", text)
    return [table for table, columns in into if "tenant_id" not in columns.split(", ")]


def text_of(statement: Any, dialect: str) -> str:
    return scope.work_for("acme", lambda: str(statement.compile(dialect=DIALECTS[dialect])))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_occurrence_of_every_table_is_restricted(dialect: str) -> None:
    statements = dict(every(statements_for(MODELS, dialect)))
    assert len(statements) > 180
    seen: set[str] = set()
    for name, statement in statements.items():
        text = text_of(statement, dialect)
        assert unrestricted(text) == [], f"{name}: {text}"
        assert inserts_without(text) == [], f"{name}: {text}"
        found = NAMED.findall(re.sub(r"\s+", " ", text))
        is_of_none = "json" in text or name.startswith("TURN_AT_ALL")
        assert found or "INSERT INTO" in text or is_of_none, f"{name}: {text}"
        seen |= {table for table, _ in found}
    assert seen == NAMES


@pytest.mark.parametrize("dialect", DIALECTS)
def test_that_test_finds_what_is_not(dialect: str) -> None:
    """On the statements as they are before they are scoped, each with a table is found."""
    found = 0
    plain = Statements(MODELS, statements_for(MODELS, dialect).dialect)
    for _, statement in every(plain):
        text = text_of(statement, dialect)
        occurs = len(NAMED.findall(re.sub(r"\s+", " ", text)))
        assert len(unrestricted(text)) == occurs
        found += occurs
    assert found > 500


@pytest.mark.parametrize("dialect", DIALECTS)
def test_one_condition_that_is_missing_is_found(dialect: str) -> None:
    text = text_of(statements_for(MODELS, dialect).LATEST, dialect)
    conditions = re.findall(r"(?:AND )?\w+\.tenant_id = (?:\?|%\(of_tenant\)s)(?:::\w+)?", text)
    assert len(conditions) == 5
    for number in range(len(conditions)):
        parts = re.split(r"((?:AND )?\w+\.tenant_id = (?:\?|%\(of_tenant\)s)(?:::\w+)?)", text)
        parts[2 * number + 1] = ""
        assert len(unrestricted("".join(parts))) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
def test_none_is_executed_for_nobody(dialect: str) -> None:
    for _, statement in every(statements_for(MODELS, dialect)):
        compiled: Any = statement.compile(dialect=DIALECTS[dialect])  # type: ignore[attr-defined]
        with pytest.raises(WrongTenant, match="for none"):
            _ = compiled.params


def test_it_is_done_once() -> None:
    st = statements_for(MODELS, "sqlite")
    first = text_of(st.LATEST, "sqlite")
    assert text_of(st.LATEST, "sqlite") == first
    shape = SHAPES[-1]
    assert st.page(shape) is st.page(shape)
    text = text_of(st.page(shape), "sqlite")
    restrict(st.page(shape), {t: t.c.tenant_id for t in MODELS.tables})
    assert text_of(st.page(shape), "sqlite") == text


def test_a_condition_that_need_not_hold_does_not_count() -> None:
    (table, *_) = MODELS.tables
    tenants = {table: table.c.tenant_id}
    same = table.c.tenant_id == bindparam("of_tenant", callable_=scope.current)
    query = select(table.c.thread_id).where(same | (table.c.thread_id == "t"))
    restrict(query, tenants)
    assert "OR" in str(query)
    assert str(query).count("tenant_id = :of_tenant") == 2
    assert ") AND " in str(query)


def test_an_outer_join_is_restricted_where_it_stands() -> None:
    st = statements_for(MODELS, "sqlite")
    text = re.sub(r"\s+", " ", text_of(st.BLOBS_OF_DOCUMENT, "sqlite"))
    _, on = text.split(" LEFT OUTER JOIN ")
    assert "tenant_id = ?" in on
    assert "WHERE" not in on


def test_a_table_is_not_handed_out() -> None:
    """Or an operation could make a statement of its own."""
    for name in ("checkpoints", "blobs", "writes", "segments"):
        with pytest.raises(WrongTenant, match="made here"):
            getattr(statements_for(MODELS, "sqlite"), name)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_without_tenants_nothing_is_in_front(dialect: str) -> None:
    st = statements_for(DEFAULT, dialect)
    assert type(st) is Statements
    assert all("tenant" not in text_of(one, dialect) for _, one in every(st))


def lone(table: int) -> Models:
    """Models of which one is without the tenant."""

    class Base(DeclarativeBase):
        pass

    models = list(declare(Base, every=TenantMixin))

    class Other(DeclarativeBase):
        pass

    models[table] = declare(Other)[table]
    return Models(*models)


@pytest.mark.parametrize("table", range(len(Models._fields)))
def test_a_tenant_on_some_tables_only(table: int) -> None:
    with pytest.raises(ValueError, match="belongs to all tables"):
        statements_for(lone(table), "sqlite")


def test_the_tenant_leads_each_key() -> None:
    for table in MODELS.tables:
        assert isinstance(table, Table)
        assert next(iter(table.primary_key)).name == "tenant_id"
