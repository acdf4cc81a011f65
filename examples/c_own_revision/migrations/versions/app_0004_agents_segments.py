"""The checkpoint tables, with room for values that grow."""

from ckpt_orm import migrations

revision = "app_0004"
down_revision = "app_0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    migrations.upgrade(to="ckpt_orm_0004", since="ckpt_orm_0003")


def downgrade() -> None:
    migrations.downgrade(to="ckpt_orm_0003", since="ckpt_orm_0004")
