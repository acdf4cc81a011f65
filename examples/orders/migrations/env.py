"""The application's environment; its second revision brings the checkpoint tables."""

import os

from alembic import context
from models import Base
from sqlalchemy import create_engine, pool

from ckpt_orm.migrations import ours

options = {
    "target_metadata": Base.metadata,
    # The checkpoint tables are not in the metadata: without this, autogenerate would drop them.
    "include_name": ours().include_name,
    "include_object": ours().include_object,
}


def offline() -> None:
    context.configure(url=os.environ["DATABASE_URL"], literal_binds=True, **options)
    with context.begin_transaction():
        context.run_migrations()


def online() -> None:
    engine = create_engine(os.environ["DATABASE_URL"], poolclass=pool.NullPool)
    with engine.connect() as connection:
        context.configure(connection=connection, **options)
        with context.begin_transaction():
            context.run_migrations()


offline() if context.is_offline_mode() else online()
