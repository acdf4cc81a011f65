"""Compress new blobs with lz4 on servers that have it: cheaper to write and to read than pglz.

Rows that are there already stay as they are. The server is asked as part of the statement, so that
a printed script is right for whichever server it is replayed on.
"""

from ckpt_orm.migrations.script import dialect, record, run

revision = "ckpt_orm_0003"
down_revision = "ckpt_orm_0002"
branch_labels = None
depends_on = None

_HAS_LZ4 = (
    "SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)"
)


def upgrade() -> None:
    _compress("lz4")
    record(revision)


def downgrade() -> None:
    _compress("default")
    record(down_revision)


def _compress(method: str) -> None:
    """A statement as text: servers before 14 cannot even parse it."""
    if dialect() != "postgresql":
        return
    for table in ("checkpoint_blobs", "checkpoint_writes"):
        alter = f"ALTER TABLE {{{table}}} ALTER COLUMN blob SET COMPRESSION {method}"
        run(f"DO $$ BEGIN IF EXISTS ({_HAS_LZ4}) THEN EXECUTE $sql${alter}$sql$; END IF; END $$")
