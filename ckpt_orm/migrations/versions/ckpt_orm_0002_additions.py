"""When a checkpoint was stored, and a digest of each blob.

Rows that are there already keep NULL, which says that it is not known. Postgres gets the column
first and its default after, so that no row is rewritten; SQLite cannot add a column whose default
is not a constant, so there the table is written once more, in the same transaction.
"""

import sqlalchemy as sa
from alembic import op

from ckpt_orm.migrations.script import dialect, has_column, here, record, run

revision = "ckpt_orm_0002"
down_revision = "ckpt_orm_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if dialect() == "postgresql":
        run(
            "ALTER TABLE {checkpoints} ADD COLUMN IF NOT EXISTS created_at TIMESTAMP WITH TIME ZONE"
        )
        run("ALTER TABLE {checkpoints} ALTER COLUMN created_at SET DEFAULT now()")
        run("ALTER TABLE {checkpoint_blobs} ADD COLUMN IF NOT EXISTS digest BYTEA")
    else:
        if not has_column("checkpoints", "created_at"):
            _rewrite()
        if not has_column("checkpoint_blobs", "digest"):
            run("ALTER TABLE {checkpoint_blobs} ADD COLUMN digest BLOB")
    record(revision)


def downgrade() -> None:
    if dialect() == "postgresql":
        run("ALTER TABLE {checkpoint_blobs} DROP COLUMN IF EXISTS digest")
        run("ALTER TABLE {checkpoints} DROP COLUMN IF EXISTS created_at")
    else:
        run("ALTER TABLE {checkpoint_blobs} DROP COLUMN digest")
        run("ALTER TABLE {checkpoints} DROP COLUMN created_at")
    record(down_revision)


def _rewrite() -> None:
    """Create, copy, drop, rename: the order in which nothing that refers to the table notices."""
    place = here()
    op.create_table(
        place.name("checkpoints__new"),
        sa.Column("thread_id", sa.Text, nullable=False),
        sa.Column("checkpoint_ns", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("checkpoint_id", sa.Text, nullable=False),
        sa.Column("parent_checkpoint_id", sa.Text),
        sa.Column("type", sa.Text),
        sa.Column("checkpoint", sa.JSON, nullable=False),
        sa.Column("metadata", sa.JSON, nullable=False, server_default=sa.text("'{}'")),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now()),
        sa.PrimaryKeyConstraint(
            "thread_id",
            "checkpoint_ns",
            "checkpoint_id",
            name=op.f(f"{place.name('checkpoints')}_pkey"),
        ),
        schema=place.schema,
    )
    run(
        "INSERT INTO {checkpoints__new} (thread_id, checkpoint_ns, checkpoint_id,"
        " parent_checkpoint_id, type, checkpoint, metadata, created_at)"
        " SELECT thread_id, checkpoint_ns, checkpoint_id,"
        " parent_checkpoint_id, type, checkpoint, metadata, NULL FROM {checkpoints}"
    )
    run("DROP TABLE {checkpoints}")
    op.rename_table(place.name("checkpoints__new"), place.name("checkpoints"), schema=place.schema)
