"""An application's own columns on the checkpoint tables, and where their values come from.

The rule is kept in the column itself, in its `info`, so a model says it where it says everything
else, and a mixin carries it along. A value is looked up in the config that a call is given, turned
into what the column's type takes, and refused before anything is stored where it is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum as PythonEnum
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import JSON, Column, Enum, String, Table, Text, TypeDecorator
from sqlalchemy.orm import MappedColumn, mapped_column
from sqlalchemy.types import TypeEngine

from ckpt_orm.documents import fits_text
from ckpt_orm.errors import InvalidConfig

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

#: Where in a column's `info` its rule is.
RULE = "ckpt_orm"

#: What the names of the parameters of such columns begin with.
FILLED = "filled_"


@dataclass(frozen=True)
class Rule:
    """Where the value of a column comes from.

    Args:
        key: the entry of the config's `configurable`, or else of its metadata.
        is_tenant: whether the column says whose the row is; its value is the saver's, not the
            config's.
    """

    key: str
    is_tenant: bool = False


def from_config(key: str, *args: Any, **kwargs: Any) -> MappedColumn[Any]:
    """A `mapped_column` that is filled from the config of the run which stores a row.

        class AgentCheckpoint(CheckpointMixin, Base):
            __tablename__ = "agent_checkpoints"
            user_id: Mapped[int | None] = from_config("user_id", ForeignKey("users.id"), index=True)

    The value is `config["configurable"][key]`, or else `config["metadata"][key]`, as the column's
    type takes it: "7" becomes 7 for an Integer. Where there is none, the column has its default, or
    NULL, or the call is refused with `InvalidConfig`. A row that is stored again takes the new
    value, and keeps the one it has where there is none.

    Args:
        key: the entry of the config.
        *args: as for `mapped_column`, such as a type or a ForeignKey.
        **kwargs: as for `mapped_column`, such as `index=True`.
    """
    info = {**kwargs.pop("info", {}), RULE: Rule(key)}
    return mapped_column(*args, info=info, **kwargs)


def tenant_column(*args: Any, key: str = "", **kwargs: Any) -> MappedColumn[Any]:
    """A `mapped_column` that says which tenant a row belongs to; it leads the primary key.

        class Tenanted:
            tenant_id: Mapped[UUID] = tenant_column(ForeignKey("tenants.id"))

    All tables of a saver have it. Its value is that of `saver.scoped(tenant_id=…)`.

    Args:
        *args: as for `mapped_column`.
        key: the entry of a config that must not name another tenant; the column's own name by
            default.
        **kwargs: as for `mapped_column`.
    """
    info = {**kwargs.pop("info", {}), RULE: Rule(key, is_tenant=True)}
    return mapped_column(*args, info=info, **kwargs)


class Filling(NamedTuple):
    """A column that a call fills: by its rule, else with the default that it has in Python.

    Those defaults are ours to fill in, since SQLAlchemy forgets them in a statement with a CTE that
    writes. The parameters are numbered, since a column may have any name.
    """

    column: Column[Any]
    rule: Rule | None
    param: str

    @property
    def type(self) -> TypeEngine[Any]:
        """The parameters' type: a text without the column's collation."""
        return plain(self.column.type)

    @property
    def fallback(self) -> str:
        """The parameter of the default."""
        return f"{self.param}_else"

    @property
    def is_required(self) -> bool:
        """Whether the rule has to give a value."""
        column = self.column
        return not column.nullable and column.default is None and column.server_default is None

    def values(self, config: RunnableConfig) -> dict[str, Any]:
        """The parameters for a config.

        Raises:
            InvalidConfig: where a value is missing and must not be, or the column cannot hold it.
        """
        values: dict[str, Any] = {}
        if self.rule is not None:
            values[self.param] = self._given(config, self.rule.key)
        if has_default(self.column):
            default: Any = self.column.default
            values[self.fallback] = default.arg(None) if default.is_callable else default.arg
        return values

    def _given(self, config: RunnableConfig, key: str) -> Any:
        value = given(config, key)
        if value is not None:
            return coerced(self.column, key, value)
        if self.is_required:
            raise InvalidConfig(
                f"config['configurable'][{key!r}] is missing: column {self.column} is filled from "
                "it and cannot be NULL"
            )
        return None


def fillings(tables: Iterable[Table]) -> tuple[Filling, ...]:
    """The columns of tables that a call fills."""
    columns = [column for table in tables for column in table.columns]
    ruled = [(column, rule_of(column)) for column in columns]
    filled = [
        (column, rule)
        for column, rule in ruled
        if (rule or has_default(column)) and not is_tenant(column)
    ]
    return tuple(Filling(*found, f"{FILLED}{n}") for n, found in enumerate(filled))


def values_of(found: Iterable[Filling], config: RunnableConfig) -> dict[str, Any]:
    """The parameters that carry the values of columns for a config."""
    return {name: value for one in found for name, value in one.values(config).items()}


def rule_of(column: Column[Any]) -> Rule | None:
    """The rule of a column that has one."""
    found = column.info.get(RULE)
    return found if isinstance(found, Rule) else None


def is_tenant(column: Column[Any]) -> bool:
    """Whether a column says which tenant a row belongs to."""
    rule = rule_of(column)
    return rule is not None and rule.is_tenant


def tenants_of(tables: Sequence[Table]) -> dict[Table, Column[Any]]:
    """The tenant's column in each table; nothing where there are no tenants.

    Raises:
        ValueError: where not every table has one, of one name, at the head of its primary key.
    """
    found = {table: column for table in tables for column in table.columns if is_tenant(column)}
    leads = [next(iter(table.primary_key), None) is found.get(table) for table in tables]
    if found and not (all(leads) and len({column.key for column in found.values()}) == 1):
        raise ValueError(
            "a tenant's column belongs to all tables of a saver, under one name and at the head of "
            "the primary key: map each with the same mixin, such as TenantMixin"
        )
    return found


def own_key(table: Table) -> list[Column[Any]]:
    """The primary key within a tenant, in order."""
    return [column for column in table.primary_key if not is_tenant(column)]


def has_default(column: Column[Any]) -> bool:
    """Whether a column has a default that Python makes."""
    default = column.default
    return default is not None and (default.is_callable or default.is_scalar)


def given(config: RunnableConfig, key: str) -> Any:
    """What a config says under a key; None where it says nothing.

    Raises:
        InvalidConfig: for what is no config.
    """
    try:
        found = (config.get("configurable") or {}).get(key)
        return (config.get("metadata") or {}).get(key) if found is None else found
    except AttributeError:
        raise InvalidConfig.instead_of(config) from None


def plain(type_: TypeEngine[Any]) -> TypeEngine[Any]:
    """The type of a parameter that is compared with a column, or stored in it.

    One that took a text column's type would bring its collation along, and an index of another
    collation would not be used.
    """
    if isinstance(type_, String) and not isinstance(type_, Enum):
        return Text()
    return _with_null(type_) if isinstance(type_, JSON) else type_


def _with_null(type_: JSON) -> TypeEngine[Any]:
    """A JSON type for which None is NULL, since it is no value, and not JSON's own null."""
    found: TypeEngine[Any] = type(type_)(none_as_null=True)
    for dialect, variant in getattr(type_, "_variant_mapping", {}).items():
        found = found.with_variant(plain(variant), dialect)
    return found


def _text(value: Any) -> str:
    found = str.__str__(value) if isinstance(value, str) else str(value)
    if not fits_text(found):
        raise ValueError
    return found


#: How a value of another type becomes one of a column's, where that loses nothing.
READERS: Mapping[type, Callable[[Any], Any]] = {
    str: _text,
    int: lambda value: int(str(value)),
    float: lambda value: float(str(value)),
    Decimal: lambda value: Decimal(str(value)),
    UUID: lambda value: UUID(str(value)),
    datetime: lambda value: datetime.fromisoformat(str(value)),
    date: lambda value: date.fromisoformat(str(value)),
    time: lambda value: time.fromisoformat(str(value)),
}


def coerced(column: Column[Any], key: str, value: Any) -> Any:
    """A value as a column's type takes it.

    Raises:
        InvalidConfig: for one that cannot become one.
    """
    if isinstance(column.type, TypeDecorator):
        return value  # which knows itself what it takes
    try:
        return _coerced(column.type.python_type, value)
    except (ValueError, TypeError, KeyError, ArithmeticError):
        raise InvalidConfig(
            f"config's {key!r} is a {type(value).__name__} that column {column} of type "
            f"{column.type!r} cannot hold: pass a {column.type.python_type.__name__}"
        ) from None


def _coerced(kind: type, value: Any) -> Any:
    if issubclass(kind, PythonEnum):
        return value if isinstance(value, kind) else _member(kind, value)
    if type(value) is kind and kind is not str:
        return value
    if kind in READERS:
        return READERS[kind](value)
    if not isinstance(value, kind):
        raise TypeError
    return value


def _member(kind: type[PythonEnum], value: Any) -> PythonEnum:
    """The member of a name, or else of a value."""
    return kind[value] if value in kind.__members__ else kind(value)
