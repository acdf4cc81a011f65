"""${message}."""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
from ckpt_orm.migrations.script import dialect, here, record, run

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}

# Names: `place = here()`, then `place.name("checkpoints")` with `schema=place.schema`, or
# `run("ALTER TABLE {checkpoints} …")`. Add the id to REVISIONS in ckpt_orm/migrations/state.py.


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
    record(revision)


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
    record(down_revision)
