"""The tables, as declarative models: the official PostgresSaver's three, and one of our own.

Each table is a mixin, so that it can be mapped on any `DeclarativeBase`; `Checkpoint`,
`CheckpointBlob`, `CheckpointWrite` and `CheckpointSegment` are the default mapping, and `declare`
maps them once more under another schema or prefix. Nothing executes here. The database itself is
born by the Alembic revisions, which never import this file; a test compares the two.

Mapped on an application's own base, the tables are the application's: its columns may stand beside
ours, its naming convention holds, and its own revisions make them.

Ids are compared byte by byte: on Postgres the key columns are declared `COLLATE "C"`, on SQLite
that is the default. A locale's order would put "-" and upper case elsewhere than Python does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, cast

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TEXT
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedColumn, declared_attr, mapped_column
from sqlalchemy.schema import SchemaItem

from ckpt_orm.columns import is_tenant, tenant_column
from ckpt_orm.names import check_names

#: A key column: text in binary order on both dialects.
Id = Text().with_variant(TEXT(collation="C"), "postgresql")


class _Binary(JSONB):
    """A JSONB that autogenerate writes into a revision such that it runs.

    On SQLite, Alembic writes a type of another dialect as its repr is, and that of a JSONB names a
    `Text` which no revision imports.
    """

    __module__ = JSONB.__module__

    def __repr__(self) -> str:
        return "JSONB()"

    def __reduce__(self) -> tuple[type[JSONB], tuple[()]]:
        return JSONB, ()


#: A document: JSONB on Postgres, JSON text on SQLite.
Document = JSON().with_variant(_Binary(), "postgresql")


class _TableArgs:
    """Names the primary key as Postgres itself would, so an adopted table has the same one.

    On a base whose naming convention names primary keys, that one does.
    """

    __tablename__: str
    __schema__: str | None = None
    __key__: tuple[str, ...]
    metadata: ClassVar[MetaData]

    @declared_attr.directive
    def __table_args__(cls) -> tuple[SchemaItem | dict[str, str], ...]:
        named: Mapping[Any, Any] = cls.metadata.naming_convention
        is_named = "pk" in named or PrimaryKeyConstraint in named
        name = None if is_named else f"{cls.__tablename__}_pkey"
        key = PrimaryKeyConstraint(*_tenant_key(cast(type[Any], cls)), *cls.__key__, name=name)
        return (key, {"schema": cls.__schema__}) if cls.__schema__ else (key,)


def _tenant_key(cls: type[Any]) -> Iterator[str]:
    """The attribute of a class, or of a mixin of it, that is the tenant's column."""
    attributes = {name: value for base in cls.__mro__[::-1] for name, value in vars(base).items()}
    for name, value in attributes.items():
        if isinstance(value, MappedColumn) and is_tenant(value.column):
            yield value.column.name or name


class TenantMixin:
    """Beside the mixin of each table: whose a row is. See `SQLAlchemySaver.scoped`."""

    tenant_id: Mapped[str] = tenant_column(Id, doc="The tenant; no other one's rows are in reach.")


class CheckpointMixin(_TableArgs):
    """One row per checkpoint: the state of a thread (in one namespace) after one superstep."""

    __key__ = ("thread_id", "checkpoint_ns", "checkpoint_id")

    thread_id: Mapped[str] = mapped_column(Id, doc="The conversation or job; chosen by the app.")
    checkpoint_ns: Mapped[str] = mapped_column(
        Id, server_default=text("''"), doc="'' for the root graph, else the path of a subgraph."
    )
    checkpoint_id: Mapped[str] = mapped_column(
        Id, doc="A uuid6: the greatest id of a thread and namespace is its latest checkpoint."
    )
    parent_checkpoint_id: Mapped[str | None] = mapped_column(
        Id, doc="The checkpoint this one continued from; None at the root of a thread."
    )
    type: Mapped[str | None] = mapped_column(Text, doc="Unused; kept for the official layout.")
    checkpoint: Mapped[dict[str, Any]] = mapped_column(
        Document,
        doc="LangGraph's checkpoint: id, ts, channel_versions, versions_seen and the small values.",
    )
    metadata_: Mapped[dict[str, Any]] = mapped_column(
        "metadata",
        Document,
        server_default=text("'{}'"),
        doc="source, step, parents, run_id and the scalars of the run's config; what filters see.",
    )
    created_at: Mapped[datetime | None] = mapped_column(
        DateTime(timezone=True),
        server_default=func.now(),
        doc="When the row was first stored, by the database's clock; None for adopted rows.",
    )


class CheckpointBlobMixin(_TableArgs):
    """One row per version of a channel whose value is not inlined in the checkpoint's document."""

    __key__ = ("thread_id", "checkpoint_ns", "channel", "version")

    thread_id: Mapped[str] = mapped_column(Id)
    checkpoint_ns: Mapped[str] = mapped_column(Id, server_default=text("''"))
    channel: Mapped[str] = mapped_column(Id, doc="The channel's name.")
    version: Mapped[str] = mapped_column(Id, doc="The version that checkpoints refer to.")
    type: Mapped[str] = mapped_column(
        Text, doc="The serde's tag of `blob`; 'empty' where the channel holds no value."
    )
    blob: Mapped[bytes | None] = mapped_column(LargeBinary, doc="The serialized value.")
    digest: Mapped[bytes | None] = mapped_column(
        LargeBinary, doc="xxh3_128 of the value, 16 bytes, checked on every read; None = not known."
    )
    chain: Mapped[bytes | None] = mapped_column(
        LargeBinary, doc="The chain of segments that holds the value, None where `blob` does."
    )
    stop: Mapped[int | None] = mapped_column(
        BigInteger, doc="Where that chain ended when the value was stored; it needs nothing beyond."
    )


class CheckpointWriteMixin(_TableArgs):
    """One row per write of a task of the superstep that follows a checkpoint ("pending writes")."""

    __key__ = ("thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx")

    thread_id: Mapped[str] = mapped_column(Id)
    checkpoint_ns: Mapped[str] = mapped_column(Id, server_default=text("''"))
    checkpoint_id: Mapped[str] = mapped_column(
        Id, doc="The checkpoint the task started from; may be committed after the write."
    )
    task_id: Mapped[str] = mapped_column(Id, doc="LangGraph's id of the task.")
    idx: Mapped[int] = mapped_column(
        Integer, doc="Position among the task's writes; negative for LangGraph's special channels."
    )
    channel: Mapped[str] = mapped_column(Id, doc="The channel that is written to.")
    type: Mapped[str | None] = mapped_column(Text, doc="The serde's tag of `blob`.")
    blob: Mapped[bytes] = mapped_column(LargeBinary, doc="The serialized value.")
    task_path: Mapped[str] = mapped_column(
        Id, server_default=text("''"), doc="The task's place in its superstep; orders the writes."
    )


class CheckpointSegmentMixin(_TableArgs):
    """One row per addition to a chain: the bytes that the versions of a growing value share."""

    __key__ = ("thread_id", "checkpoint_ns", "channel", "chain", "start")

    thread_id: Mapped[str] = mapped_column(Id)
    checkpoint_ns: Mapped[str] = mapped_column(Id, server_default=text("''"))
    channel: Mapped[str] = mapped_column(Id, doc="The channel's name.")
    chain: Mapped[bytes] = mapped_column(LargeBinary, doc="A random id, 16 bytes.")
    start: Mapped[int] = mapped_column(BigInteger, doc="Where in its chain the data begin.")
    data: Mapped[bytes] = mapped_column(LargeBinary, doc="Bytes of serialized values.")
    digest: Mapped[bytes] = mapped_column(
        LargeBinary, doc="Stands for all of the chain up to here, however it came to be; 16 bytes."
    )


class Base(DeclarativeBase):
    """The registry of the default models; its metadata holds their tables and nothing else."""


class Checkpoint(CheckpointMixin, Base):
    """The default model of the table `checkpoints`."""

    __tablename__ = "checkpoints"


class CheckpointBlob(CheckpointBlobMixin, Base):
    """The default model of the table `checkpoint_blobs`."""

    __tablename__ = "checkpoint_blobs"


class CheckpointWrite(CheckpointWriteMixin, Base):
    """The default model of the table `checkpoint_writes`."""

    __tablename__ = "checkpoint_writes"


class CheckpointSegment(CheckpointSegmentMixin, Base):
    """The default model of the table `checkpoint_segments`."""

    __tablename__ = "checkpoint_segments"


class Models(NamedTuple):
    """The models of one set of tables, each a mapped class with the mixin of its name."""

    checkpoint: type[CheckpointMixin]
    blob: type[CheckpointBlobMixin]
    write: type[CheckpointWriteMixin]
    segment: type[CheckpointSegmentMixin]

    @property
    def tables(self) -> tuple[Table, Table, Table, Table]:
        """checkpoints, checkpoint_blobs, …_writes, …_segments: what statements are built over."""
        checkpoint, blob, write, segment = (cast(Any, model).__table__ for model in self)
        return checkpoint, blob, write, segment

    @property
    def metadata(self) -> MetaData:
        """What holds the tables: nothing else, to be put into a `target_metadata`, or an
        application's own.
        """
        return self.tables[0].metadata

    @property
    def place(self) -> tuple[str | None, str]:
        """The schema of the tables, and what the name of the first one begins with."""
        table = self.tables[0]
        return table.schema, table.name.removesuffix(Checkpoint.__tablename__)

    @property
    def are_packaged(self) -> bool:
        """Whether the packaged revisions make these tables, and not an application's own."""
        return self == DEFAULT or issubclass(self.checkpoint, _Packaged)


DEFAULT = Models(Checkpoint, CheckpointBlob, CheckpointWrite, CheckpointSegment)


def declare(
    base: type[DeclarativeBase] | None = None,
    *,
    schema: str | None = None,
    prefix: str = "",
    extra: type[Any] | Sequence[type[Any]] = (),
    every: type[Any] | Sequence[type[Any]] = (),
) -> Models:
    """The models of the tables `{schema}.{prefix}checkpoints…`.

    Without a base they are on a registry of their own, and the packaged revisions make the tables.
    On a base of the application's, its naming convention holds, and its own revisions make them:

        class Owned:
            user_id: Mapped[int | None] = from_config("user_id", index=True)

        models = declare(Base, prefix="agent_", extra=Owned)
        saver = SQLAlchemySaver(engine, models=models)

    To name the classes, or to give columns to the other tables, map the mixins: see `Models`.

    Args:
        base: the application's declarative base.
        schema: the schema the tables live in; None leaves it to the connection, or to the base's
            metadata.
        prefix: what the names begin with, "" for the official ones.
        extra: mixins with more columns and relationships of the checkpoints' model.
        every: mixins of all the models, such as `TenantMixin`.

    Returns:
        Without a base, the same classes each time. On a base, new ones, so only once.

    Raises:
        InvalidConfig: for a schema or prefix that no name can hold.
        ValueError: for `extra` or `every` without a base.
    """
    check_names(schema, prefix)
    if base is not None:
        return _mapped(base, schema, prefix, _several(extra), _several(every))
    if extra or every:
        raise ValueError("extra columns need tables of your own: pass your declarative base too")
    return _declared(schema, prefix) if schema is not None or prefix else DEFAULT


def _several(mixins: type[Any] | Sequence[type[Any]]) -> tuple[type[Any], ...]:
    return (mixins,) if isinstance(mixins, type) else tuple(mixins)


class _Packaged:
    """Marks the models on a registry of their own."""


# Behind `declare`, since a cache takes an argument by name for another call than one by position.
@lru_cache(maxsize=256)
def _declared(schema: str | None, prefix: str) -> Models:
    class Registry(_Packaged, DeclarativeBase):
        metadata = MetaData(schema=schema)

    return _mapped(Registry, None, prefix)


def _mapped(
    base: type[DeclarativeBase],
    schema: str | None,
    prefix: str,
    extra: tuple[type[Any], ...] = (),
    every: tuple[type[Any], ...] = (),
) -> Models:
    """The models on a base, in whose registry a prefix tells their names from other ones."""
    named = "".join(part.capitalize() for part in prefix.split("_"))

    def model(mixin: type[Any], like: type[Base], *more: type[Any]) -> Any:
        names = {"__tablename__": prefix + like.__tablename__, "__doc__": like.__doc__}
        own = {"__schema__": schema, "__module__": base.__module__}
        return type(named + like.__name__, (*more, *every, mixin, base), names | own)

    return Models(
        model(CheckpointMixin, Checkpoint, *extra),
        model(CheckpointBlobMixin, CheckpointBlob),
        model(CheckpointWriteMixin, CheckpointWrite),
        model(CheckpointSegmentMixin, CheckpointSegment),
    )
