"""The checkpoint tables, as this release of the application needs them."""

from ckpt_orm import migrations

revision = "app_0002"
down_revision = "app_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    migrations.upgrade(to="ckpt_orm_0004")


def downgrade() -> None:
    migrations.downgrade(to="base")
