"""The three tables, in the shape the official PostgresSaver gives them at its version 9.

On an empty database they are created. On one of the official saver, at any of its versions, what
is missing is created and nothing that is there moves; every statement is therefore one that does
nothing where there is nothing to do. The official saver's redundant indexes on `thread_id`, with
which each primary key begins, are neither made nor removed.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from ckpt_orm.migrations.script import (
    dialect,
    here,
    is_official,
    online,
    record,
    refuse_foreign,
    refuse_loss,
    run,
)

revision = "ckpt_orm_0001"
down_revision = None
branch_labels = ("ckpt_orm",)
depends_on = None

Id = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
Document = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    refuse_foreign()
    _create(
        "checkpoints",
        ("thread_id", "checkpoint_ns", "checkpoint_id"),
        sa.Column("thread_id", Id, nullable=False),
        sa.Column("checkpoint_ns", Id, nullable=False, server_default=sa.text("''")),
        sa.Column("checkpoint_id", Id, nullable=False),
        sa.Column("parent_checkpoint_id", Id),
        sa.Column("type", sa.Text),
        sa.Column("checkpoint", Document, nullable=False),
        sa.Column("metadata", Document, nullable=False, server_default=sa.text("'{}'")),
    )
    _create(
        "checkpoint_blobs",
        ("thread_id", "checkpoint_ns", "channel", "version"),
        sa.Column("thread_id", Id, nullable=False),
        sa.Column("checkpoint_ns", Id, nullable=False, server_default=sa.text("''")),
        sa.Column("channel", Id, nullable=False),
        sa.Column("version", Id, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("blob", sa.LargeBinary),
    )
    _create(
        "checkpoint_writes",
        ("thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx"),
        sa.Column("thread_id", Id, nullable=False),
        sa.Column("checkpoint_ns", Id, nullable=False, server_default=sa.text("''")),
        sa.Column("checkpoint_id", Id, nullable=False),
        sa.Column("task_id", Id, nullable=False),
        sa.Column("idx", sa.Integer, nullable=False),
        sa.Column("channel", Id, nullable=False),
        sa.Column("type", sa.Text),
        sa.Column("blob", sa.LargeBinary, nullable=False),
        sa.Column("task_path", Id, nullable=False, server_default=sa.text("''")),
    )
    if dialect() == "postgresql":
        run("ALTER TABLE {checkpoint_blobs} ALTER COLUMN blob DROP NOT NULL")
        run(
            "ALTER TABLE {checkpoint_writes} ADD COLUMN IF NOT EXISTS"
            " task_path TEXT COLLATE \"C\" DEFAULT '' NOT NULL"
        )
    record(revision)


def downgrade() -> None:
    if not is_official():
        refuse_loss("checkpoint_writes", "checkpoint_blobs", "checkpoints")
        _drop()
    record(down_revision)


def _drop() -> None:
    """Drop what the official saver does not claim, which a printed script must ask for itself."""
    drops = [
        "DROP TABLE {checkpoint_writes}",
        "DROP TABLE {checkpoint_blobs}",
        "DROP TABLE {checkpoints}",
    ]
    if dialect() == "postgresql" and online() is None:
        body = "; ".join(f"    EXECUTE $sql${drop}$sql$" for drop in drops)
        claimed = "to_regclass($name${checkpoint_migrations}$name$)"
        run(f"DO $$ BEGIN IF {claimed} IS NULL THEN {body}; END IF; END $$")
    else:
        for drop in drops:
            run(drop)


def _create(table: str, key: tuple[str, ...], *columns: sa.Column[Any]) -> None:
    place = here()
    op.create_table(
        place.name(table),
        *columns,
        sa.PrimaryKeyConstraint(*key, name=op.f(f"{place.name(table)}_pkey")),
        schema=place.schema,
        if_not_exists=True,
    )
