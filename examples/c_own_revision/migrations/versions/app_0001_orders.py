"""The application's first table."""

import sqlalchemy as sa
from alembic import op

revision = "app_0001"
down_revision = None
branch_labels = ("app",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "orders",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("thread_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_orders")),
    )
    op.create_index(op.f("ix_orders_thread_id"), "orders", ["thread_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_orders_thread_id"), "orders")
    op.drop_table("orders")
