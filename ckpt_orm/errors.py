"""What can go wrong, as one family with `CheckpointError` at its root.

Each leaf is built from facts (names, ids, revisions; never a stored value or a password), says what
to do about it, and also is the standard exception a caller would expect, so both `except
SchemaNotReady` and `except RuntimeError` work. All of them survive pickling: the facts are kept in
`args`, and the message is derived from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any


class CheckpointError(Exception):
    """The root of every error this package raises on purpose."""


class InvalidConfig(CheckpointError, ValueError):
    """A config, id, version or filter that cannot be stored, told before anything is sent."""

    @classmethod
    def instead_of(cls, config: Any) -> InvalidConfig:
        """What is told where something else was given for a config, or for a part of it."""
        what, found = "the config", config
        for part in ("configurable", "metadata"):
            held = config.get(part) if isinstance(config, Mapping) else None
            if held and not isinstance(held, Mapping):
                what, found = f"config[{part!r}]", held
        return cls(f"{what} is {_kind_of(found)}: pass {{'configurable': {{'thread_id': …}}}}")

    @classmethod
    def unless_mapping(cls, what: str, found: Any) -> None:
        """Refuse what is none of a dict's kind."""
        if not isinstance(found, Mapping):
            raise cls(f"{what} is {_kind_of(found)}: pass a dict") from None


def _kind_of(found: Any) -> str:
    return "None" if found is None else f"of type {type(found).__name__}"


class NotSerializable(InvalidConfig, TypeError):
    """A value that the saver's serde cannot hold; nothing was stored.

    Args:
        where: what it was for, such as a channel, in words.
        problem: what kind of thing in it is refused.
        remedy: what to do about it, in words.
    """

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        super().__init__(where, problem, remedy)

    def __str__(self) -> str:
        where, problem, remedy = self.args
        return f"{where} cannot be stored: the serde cannot hold {problem}; {remedy}"


class BadURL(InvalidConfig):
    """A database's URL that cannot be read, no part of which is shown.

    Args:
        problem: what is wrong with it, in words.
        remedy: what to do, in words; "" is to write another URL.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)

    @property
    def advice(self) -> str:
        """What is wrong and how to write it, for whoever has a URL and no engine."""
        problem, remedy = self.args
        another = "write postgresql://user:password@host/name, or sqlite:///file.db"
        return f"the database's URL {problem}: {remedy or another}"

    def __str__(self) -> str:
        engine = "" if self.args[1] else " (for an engine there is SQLAlchemySaver(engine))"
        return self.advice + engine


class WrongEngine(CheckpointError, RuntimeError):
    """The saver holds no engine of the colour that was asked for, or one it could not serve."""


class MissingExtra(CheckpointError, ImportError):
    """Something needs a package that comes with an extra.

    Args:
        extra: its name.
        package: what is not installed.
    """

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(extra, package)

    def __str__(self) -> str:
        extra, package = self.args
        return f"{package} is not installed: run `pip install 'ckpt-orm[{extra}]'`"


class WrongTenant(CheckpointError, RuntimeError):
    """A call on tables of many tenants that is for none, or for another than its saver is."""


class UnsupportedDialect(WrongEngine):
    """The engine speaks to a database other than SQLite or Postgres."""

    def __init__(self, dialect: str) -> None:
        super().__init__(dialect)

    def __str__(self) -> str:
        (dialect,) = self.args
        near = get_close_matches(str(dialect), ("sqlite", "postgresql"), 1, cutoff=0.7)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        return (
            f"ckpt_orm supports the dialects 'sqlite' and 'postgresql', not {dialect!r}{meant}: "
            "pass an engine or a URL for one of these"
        )


class SchemaError(CheckpointError, RuntimeError):
    """The tables are not what this release works with."""


class SchemaNotReady(SchemaError):
    """The tables are missing, or older than this release.

    Args:
        found: the revision the database is at, None where it has none of our tables.
        wanted: the revision this release needs.
        schema: the schema that was looked at, None for the connection's default.
        prefix: what the names of the tables begin with.
        database: which database was looked at, in words.
        is_blank: whether that is a file which holds nothing at all.
    """

    def __init__(
        self,
        found: str | None,
        wanted: str,
        schema: str | None = None,
        prefix: str = "",
        database: str = "",
        is_blank: bool = False,
    ) -> None:
        super().__init__(found, wanted, schema, prefix, database, is_blank)

    def __str__(self) -> str:
        found, wanted, schema, prefix, database, is_blank = self.args
        where = f" in schema {schema!r}" if schema else ""
        state = f"are at revision {found}" if found else "are not set up"
        options = (f" --schema {schema}" if schema else "") + (
            f" --prefix {prefix}" if prefix else ""
        )
        return (
            f"the checkpoint tables{where}{_in(database)} {state}, this release needs {wanted}: "
            f"run `ckpt-orm upgrade{options}`, or once `saver.setup()` or `await saver.asetup()`"
            + (_BLANK if is_blank else "")
        )


#: What to do where it may be the name that is wrong, of which SQLite has made a file.
_BLANK = (
    "; the file holds nothing, and SQLite makes such a file of a name that is mistyped: if so, "
    "correct the name and remove that file"
)


def _in(database: str) -> str:
    return f" in {database}" if database else ""


class ModelsNotReady(SchemaNotReady):
    """The tables of an application's own models are not in the database as the models have them.

    Args:
        problem: what is missing, in words.
        database: which database was looked at, in words.
        is_blank: whether that is a file which holds nothing at all.
    """

    def __init__(self, problem: str, database: str = "", is_blank: bool = False) -> None:
        SchemaError.__init__(self, problem, database, is_blank)

    def __str__(self) -> str:
        problem, database, is_blank = self.args
        return (
            f"{problem}{_in(database)}: it belongs to models of your own, which your own revisions "
            "make: run `alembic revision --autogenerate` and `alembic upgrade head`, or in a test "
            "`models.metadata.create_all(engine)`" + (_BLANK if is_blank else "")
        )


class ForeignTable(SchemaError):
    """A table has one of our names and another shape; it was left as it is.

    Args:
        table: its name, with its schema where one was given.
        difference: what differs, in words.
        remedy: what to do, in words.
    """

    def __init__(self, table: str, difference: str, remedy: str) -> None:
        super().__init__(table, difference, remedy)

    def __str__(self) -> str:
        table, difference, remedy = self.args
        return (
            f"table {table!r} is not a checkpoint table: {difference}; "
            f"nothing was changed: {remedy}"
        )


class SchemaLocked(SchemaError):
    """Another upgrade of the same tables did not end in time; nothing was changed.

    Args:
        seconds: how long this one waited.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)

    def __str__(self) -> str:
        return (
            "another upgrade of the checkpoint tables was still running "
            f"after {self.args[0]:.0f} s; nothing was changed: "
            "wait for it, or end its connection, and try again"
        )


class DataWouldBeLost(SchemaError):
    """A downgrade would drop a table that has rows; it was left as it is.

    Args:
        table: its name, with its schema where one was given.
        remedy: what to do with the rows, in words.
    """

    def __init__(self, table: str, remedy: str) -> None:
        super().__init__(table, remedy)

    def __str__(self) -> str:
        table, remedy = self.args
        return (
            f"the downgrade would drop table {table!r}, which has rows; "
            f"nothing was changed: {remedy}, "
            "or pass `--delete-data` (to alembic: `-x delete-data=yes`, to "
            "`migrations.downgrade`: `delete_data=True`)"
        )


class CorruptCheckpoint(CheckpointError, ValueError):
    """What is stored is not what was written: a payload's digest differs, or it cannot be decoded.

    Args:
        row: the row's table and key, in words.
        problem: what is wrong with it.
    """

    def __init__(self, row: str, problem: str) -> None:
        super().__init__(row, problem)

    def __str__(self) -> str:
        row, problem = self.args
        return (
            f"{row}: {problem}; restore the row from a backup, "
            "or continue the thread from an earlier checkpoint"
        )


class DatabaseError(CheckpointError):
    """The database refused an operation; the driver's own error is the `__cause__`.

    Args:
        operation: what was being done.
        code: the SQLSTATE, or SQLite's name of the error, or "" where the driver gave none.
        kind: the class of the driver's error.
        reason: why, and what to do, in words; "" where the code and the class are all there is.
    """

    advice = "see the cause for the database's own words"

    def __init__(self, operation: str, code: str, kind: str, reason: str = "") -> None:
        super().__init__(operation, code, kind)
        # Not read back from `args`, of which an OSError keeps two.
        self.operation, self.code, self.kind, self.reason = operation, code, kind, reason

    def __str__(self) -> str:
        code = f" ({self.code})" if self.code else ""
        return f"{self.operation} failed: {self.kind}{code}; {self.reason or self.advice}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.operation, self.code, self.kind, self.reason)


class DatabaseUnavailable(DatabaseError, ConnectionError):
    """No connection could be had, or it was lost or busy, as often as the operation was tried.

    What another run cannot mend, such as a wrong password, is not tried again.
    """

    advice = "it was tried several times: see whether the server can be reached, and call again"
