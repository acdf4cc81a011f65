"""The schema as a product: one linear history of revisions, and every way to run it.

`setup` is for programs and works on a `Connection`; `check` and `current` look and change nothing;
`upgrade` and `downgrade` are for an application's own revisions; `ours` and `leftovers` keep its
autogenerate clean; `environment.run` is what an `env.py` calls. Alembic itself is imported only
when there is something to do.
"""

from ckpt_orm.migrations.filters import Filter, leftovers, ours
from ckpt_orm.migrations.grants import grants
from ckpt_orm.migrations.isolation import isolate_tenants, release_tenants
from ckpt_orm.migrations.run import downgrade, setup, setup_engine, upgrade
from ckpt_orm.migrations.state import HEAD, REVISIONS, check, current
from ckpt_orm.migrations.tables import are_adopted, check_models, setup_models

__all__ = [
    "HEAD",
    "REVISIONS",
    "Filter",
    "are_adopted",
    "check",
    "check_models",
    "current",
    "downgrade",
    "grants",
    "isolate_tenants",
    "leftovers",
    "ours",
    "release_tenants",
    "setup",
    "setup_engine",
    "setup_models",
    "upgrade",
]
