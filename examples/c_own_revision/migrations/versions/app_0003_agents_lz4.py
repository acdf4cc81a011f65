"""The checkpoint tables, as the next release of ckpt_orm needs them."""

from ckpt_orm import migrations

revision = "app_0003"
down_revision = "app_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # `since` is read only under --sql, where no database can be asked.
    migrations.upgrade(to="ckpt_orm_0003", since="ckpt_orm_0002")


def downgrade() -> None:
    migrations.downgrade(to="ckpt_orm_0002", since="ckpt_orm_0003")
