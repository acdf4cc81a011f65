"""Compress new blobs with lz4 on servers that have it: cheaper to write and to read than pglz.

Rows that are there already stay as they are.
"""

from ckpt_orm.migrations.script import compress, record

revision = "ckpt_orm_0003"
down_revision = "ckpt_orm_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _compress("lz4")
    record(revision)


def downgrade() -> None:
    _compress("default")
    record(down_revision)


def _compress(method: str) -> None:
    for table in ("checkpoint_blobs", "checkpoint_writes"):
        compress(table, "blob", method)
