"""A LangGraph checkpointer for SQLite and Postgres, on SQLAlchemy, with Alembic owning the schema.

What is public is named here. To read the code, follow a call:

    saver        the one class: every public method is encode, run, decode
    lifetime, removing    how it is made, scoped and closed; what deletes and copies
    codec        MEANING: configs and checkpoints become rows, rows become CheckpointTuples
    rows         what travels between the codec and the operations
    messages, unchanged, stretches    messages that were decoded, or encoded, before
    compression  what a serde makes, smaller
    documents    what JSON can hold, and the one rule for what it cannot
    refusals     what the serde cannot hold: told by its channel, and left out of metadata
    logs, growth what versions of a growing value have in common, and how little a new one stores
    runners      HOW: in either colour, retried as a whole, errors told in our words
    combining    TOGETHER: calls of the same time in one transaction
    lending      a connection whose isolation level is set and set back
    spares       a connection kept between two calls
    waiting      turns, threads, and what is not interrupted
    modes        who begins and ends a transaction of SQLite's
    guests       WITHIN: operations in a transaction of the caller's
    tenants      SCOPED: for one tenant of many, whose name the statements ask of `scope`
    engines      WHERE: the engines of an application, and those made from a URL
    operations   EXECUTE: functions of a connection, written once for both colours
    statements   PLAN: every SQL statement, each built once
    parcels      the rows of a call as two parameters
    lanes        Core, or the short way to the driver
    history, retention    DeltaChannel walks; deleting and copying by rule
    finding      summaries of threads, counts: what there is, without its state
    policies, sweeping    what of a thread stays; the rest goes in small transactions
    anatomy, verifying    whether what is stored fits together
    packing      values that are there become logs, or whole again
    compacting   a value where a DeltaChannel had to be rebuilt
    upkeep       the saver's methods for an operator
    models       the tables, as declarative models
    urls, options    a URL as somebody wrote it
    names        what a schema and a prefix may be
    columns      an application's own columns on them
    migrations   the revisions that create and change them
    errors       what can go wrong, each with its remedy
    reasons      why a database was not reached or has refused
    words        how numbers are told
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ckpt_orm.columns import from_config, tenant_column
from ckpt_orm.errors import (
    BadURL,
    CheckpointError,
    CorruptCheckpoint,
    DatabaseError,
    DatabaseUnavailable,
    DataWouldBeLost,
    ForeignTable,
    InvalidConfig,
    NotSerializable,
    SchemaError,
    SchemaLocked,
    SchemaNotReady,
    UnsupportedDialect,
    WrongEngine,
    WrongTenant,
)
from ckpt_orm.models import (
    Base,
    Checkpoint,
    CheckpointBlob,
    CheckpointBlobMixin,
    CheckpointMixin,
    CheckpointSegment,
    CheckpointSegmentMixin,
    CheckpointWrite,
    CheckpointWriteMixin,
    Models,
    TenantMixin,
    declare,
)
from ckpt_orm.version import __version__

if TYPE_CHECKING:
    from ckpt_orm.engines import tune
    from ckpt_orm.finding import ThreadSummary
    from ckpt_orm.packing import Packed
    from ckpt_orm.policies import Retention
    from ckpt_orm.saver import SQLAlchemySaver
    from ckpt_orm.sweeping import Progress, Swept
    from ckpt_orm.verifying import Fault, Report

__all__ = [
    "BadURL",
    "Base",
    "Checkpoint",
    "CheckpointBlob",
    "CheckpointBlobMixin",
    "CheckpointError",
    "CheckpointMixin",
    "CheckpointSegment",
    "CheckpointSegmentMixin",
    "CheckpointWrite",
    "CheckpointWriteMixin",
    "CorruptCheckpoint",
    "DataWouldBeLost",
    "DatabaseError",
    "DatabaseUnavailable",
    "Fault",
    "ForeignTable",
    "InvalidConfig",
    "Models",
    "NotSerializable",
    "Packed",
    "Progress",
    "Report",
    "Retention",
    "SQLAlchemySaver",
    "SchemaError",
    "SchemaLocked",
    "SchemaNotReady",
    "Swept",
    "TenantMixin",
    "ThreadSummary",
    "UnsupportedDialect",
    "WrongEngine",
    "WrongTenant",
    "__version__",
    "declare",
    "from_config",
    "tenant_column",
    "tune",
]

#: What is imported when it is first asked for, and from where: it brings LangChain along, which a
#: migration or an application's models have no use for and would wait a second for.
_LATER = {
    "Fault": "verifying",
    "Packed": "packing",
    "Progress": "sweeping",
    "Report": "verifying",
    "Retention": "policies",
    "SQLAlchemySaver": "saver",
    "Swept": "sweeping",
    "ThreadSummary": "finding",
    "tune": "engines",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
