"""The application's environment, which has the checkpoint tables among its own."""

import os

from alembic import context
from models import Base
from sqlalchemy import create_engine, pool

from ckpt_orm import models as checkpoints
from ckpt_orm.migrations import leftovers

options = {
    "target_metadata": [Base.metadata, checkpoints.Base.metadata],
    # The checkpoint tables are compared like the own ones; only the version table is left out.
    "include_name": leftovers().include_name,
    "include_object": leftovers().include_object,
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
