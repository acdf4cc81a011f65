"""The environment of `script_location = ckpt_orm:migrations`."""

from alembic import context

from ckpt_orm.migrations.environment import run

run(context)  # type: ignore[arg-type]
