"""This repository's environment: the same two lines an application may write."""

from alembic import context

from ckpt_orm.migrations.environment import run

run(context)
