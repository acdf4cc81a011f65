"""Room for values that grow: the bytes that later versions of a channel share, stored once.

A blob of a growing value names a chain and says where in it the value ends; the bytes are in the
new table. Blobs that are there already stay as they are, with no chain.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from ckpt_orm.migrations.script import (
    compress,
    dialect,
    has_column,
    here,
    record,
    refuse_loss,
    run,
)

revision = "ckpt_orm_0004"
down_revision = "ckpt_orm_0003"
branch_labels = None
depends_on = None

Id = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")

_KEY = ("thread_id", "checkpoint_ns", "channel", "chain", "start")


def upgrade() -> None:
    place = here()
    if dialect() == "postgresql":
        run("ALTER TABLE {checkpoint_blobs} ADD COLUMN IF NOT EXISTS chain BYTEA")
        run("ALTER TABLE {checkpoint_blobs} ADD COLUMN IF NOT EXISTS stop BIGINT")
    else:
        for name, kind in (("chain", "BLOB"), ("stop", "BIGINT")):
            if not has_column("checkpoint_blobs", name):
                run(f"ALTER TABLE {{checkpoint_blobs}} ADD COLUMN {name} {kind}")
    op.create_table(
        place.name("checkpoint_segments"),
        sa.Column("thread_id", Id, nullable=False),
        sa.Column("checkpoint_ns", Id, nullable=False, server_default=sa.text("''")),
        sa.Column("channel", Id, nullable=False),
        sa.Column("chain", sa.LargeBinary, nullable=False),
        sa.Column("start", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint(*_KEY, name=op.f(f"{place.name('checkpoint_segments')}_pkey")),
        schema=place.schema,
        if_not_exists=True,
    )
    compress("checkpoint_segments", "data", "lz4")
    record(revision)


def downgrade() -> None:
    refuse_loss("checkpoint_segments", remedy="store its values whole with `ckpt-orm unpack`")
    run("DROP TABLE {checkpoint_segments}")
    if dialect() == "postgresql":
        run("ALTER TABLE {checkpoint_blobs} DROP COLUMN IF EXISTS stop")
        run("ALTER TABLE {checkpoint_blobs} DROP COLUMN IF EXISTS chain")
    else:
        run("ALTER TABLE {checkpoint_blobs} DROP COLUMN stop")
        run("ALTER TABLE {checkpoint_blobs} DROP COLUMN chain")
    record(down_revision)
