"""PLAN: every statement, each built once for a set of tables on a dialect.

Statements are Core constants over the models' tables, with `bindparam`s, which SQLAlchemy compiles
on first use and finds in its cache ever after. They are nouns, named by the question they answer.
What depends on the shape of a call (which conditions a `list` has) is built once per shape.

    dialects   what SQLite and Postgres do differently
    reading    a checkpoint, or a page of them, with all that belongs to it
    stepping   a checkpoint, table by table, where no network lies between
    walking    the ancestors that a DeltaChannel is rebuilt from
    keeping    a thread without its state, deletions by key, copies
    sweeping   which threads there are, how old and heavy they are, and whether all fits
    finding    summaries of threads, counts of checkpoints
    writing    put, put_writes, delete_thread
    growing    put, where values share bytes with earlier ones
    scoping    all of them for one tenant, where the tables hold many
"""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from ckpt_orm.columns import tenants_of
from ckpt_orm.models import Models
from ckpt_orm.statements.dialects import Dialect, dialect_named
from ckpt_orm.statements.growing import Statements
from ckpt_orm.statements.reading import Page
from ckpt_orm.statements.scoping import ScopedStatements

__all__ = ["Dialect", "Page", "Statements", "dialect_named", "statements_for"]


@lru_cache(maxsize=512)
def statements_for(models: Models, dialect: str) -> Statements:
    """The statements over `models` on a dialect, the same object each time.

    Raises:
        UnsupportedDialect: for a dialect other than "sqlite" and "postgresql".
    """
    statements = Statements(models, dialect_named(dialect))
    tenants = tenants_of(models.tables)
    return cast(Statements, ScopedStatements(statements, tenants)) if tenants else statements
