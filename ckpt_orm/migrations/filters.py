"""WHOSE a name is, for Alembic's autogenerate: three filters, each for one of the neighbours.

An application that leaves our tables out of its models passes `ours`: it hides them. One that
merges our models into its `target_metadata` passes `leftovers`: it hides what they do not describe,
the version table and what the official saver left behind. Our own environment passes `theirs`,
which hides everything else in the database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ckpt_orm.migrations.place import (
    OFFICIAL_INDEXES,
    OFFICIAL_VERSION_TABLE,
    TABLES,
    Place,
)


@dataclass(frozen=True)
class Filter:
    """The pair of functions that `context.configure` takes under the names of the two methods.

    Args:
        hides_table: whether the table of this schema and name is left out.
        hides_schema: whether the schema of this name is left out.
        hidden_indexes: the indexes that are left out on tables which are not.
    """

    hides_table: Callable[[str | None, str], bool]
    hides_schema: Callable[[str | None], bool]
    hidden_indexes: frozenset[str]

    def include_name(
        self, name: str | None, type_: str, parent_names: Mapping[Any, str | None]
    ) -> bool:
        """Whether a name found in the database is compared."""
        if type_ == "schema":
            return not self.hides_schema(name)
        if type_ == "table":
            return not self.hides_table(parent_names.get("schema_name"), str(name))
        return type_ != "index" or name not in self.hidden_indexes

    def include_object(
        self, item: Any, name: str | None, type_: str, reflected: bool, compare_to: Any
    ) -> bool:
        """Whether an object of the database, or of the models, is compared."""
        if type_ == "table":
            return not self.hides_table(item.schema, str(name))
        return type_ != "index" or not reflected or name not in self.hidden_indexes


def ours(schema: str | None = None, prefix: str = "") -> Filter:
    """Hide our tables, with all that belongs to them, from an application's autogenerate."""
    names = _tables(prefix) | _leftovers(prefix)
    return Filter(lambda s, name: s == schema and name in names, _none, frozenset())


def leftovers(schema: str | None = None, prefix: str = "") -> Filter:
    """Hide what our models do not describe, from an application that has merged them."""
    names = _leftovers(prefix)
    return Filter(lambda s, name: s == schema and name in names, _none, _OFFICIAL)


def theirs(schema: str | None = None, prefix: str = "") -> Filter:
    """Hide all that is not described by our models."""
    names = _tables(prefix)
    return Filter(
        lambda s, name: s != schema or name not in names, lambda s: s != schema, _OFFICIAL
    )


_OFFICIAL = frozenset(OFFICIAL_INDEXES)


def _none(schema: str | None) -> bool:
    return False


def _tables(prefix: str) -> frozenset[str]:
    return frozenset(prefix + table for table in TABLES)


def _leftovers(prefix: str) -> frozenset[str]:
    version_table = Place(prefix=prefix).version_table
    return frozenset({version_table} | (set() if prefix else {OFFICIAL_VERSION_TABLE}))
