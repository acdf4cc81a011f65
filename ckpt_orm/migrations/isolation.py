"""WHO sees which tenant's rows: row-level security on Postgres, by the role of the session.

Whoever may run SQL of his own may also SET any parameter, so the policy does not read one: it reads
`current_user`, which the server vouches for. A tenant's role is named after the tenant. It sees,
inserts, changes and deletes the rows of its tenant and no others, whatever it executes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_orm.migrations.place import Place, quoted
from ckpt_orm.migrations.state import escaped

#: The names of our policies.
TENANT, TRUSTED = "ckpt_orm_tenant", "ckpt_orm_trusted"


def isolate_tenants(
    *tables: str,
    schema: str | None = None,
    tenant: str = "tenant_id",
    type_: str = "text",
    role_prefix: str = "tenant_",
    trusted: Sequence[str] = (),
) -> None:
    """Restrict tables to the rows of the tenant whose role executes; called by a revision.

    A role `tenant_acme` sees the tenant `acme`. Other roles see nothing, the owner of the tables
    neither, except those that are `trusted`; superusers and roles with BYPASSRLS are not held by
    any policy. Nothing happens on other databases than Postgres.

    Args:
        *tables: the names of the tables, as they are in the database.
        schema: the schema they are in; None leaves it to the connection.
        tenant: the column of the tenant.
        type_: its type in SQL, such as "uuid".
        role_prefix: what the names of the tenants' roles begin with. Postgres cuts a name of more
            than 63 bytes off, so a tenant's id and the prefix may measure 63 bytes together.
        trusted: roles that see all tenants, such as the one that an application serves all of
            them with, and the owner that migrates data.
    """
    _execute(_isolation(tables, schema, tenant, type_, role_prefix, trusted))


def release_tenants(*tables: str, schema: str | None = None) -> None:
    """Take `isolate_tenants` back; called by a revision's downgrade.

    Args:
        *tables: as for `isolate_tenants`.
        schema: as for `isolate_tenants`.
    """
    _execute(_release(tables, schema))


def _execute(statements: Iterator[str]) -> None:
    from alembic import op

    if op.get_context().dialect.name == "postgresql":
        for statement in statements:
            op.execute(escaped(statement))


def _isolation(
    tables: Sequence[str],
    schema: str | None,
    tenant: str,
    type_: str,
    role_prefix: str,
    trusted: Sequence[str],
) -> Iterator[str]:
    prefix = "'" + role_prefix.replace("'", "''") + "'"
    # NULL for a role of another name, which no tenant equals. `current_user` does not change
    # within a statement, so the column's index is used.
    own = (
        f"CASE WHEN starts_with(current_user::text, {prefix}) "
        f"THEN CAST(substr(current_user::text, {len(role_prefix) + 1}) AS {type_}) END"
    )
    for name in tables:
        table = Place(schema).qualified(name)
        yield f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"
        # Otherwise the owner, as which many an application logs in, would be exempt.
        yield f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY"
        yield (
            f"CREATE POLICY {TENANT} ON {table} "
            f"USING ({quoted(tenant)} = {own}) WITH CHECK ({quoted(tenant)} = {own})"
        )
        if trusted:
            roles = ", ".join(map(quoted, trusted))
            yield f"CREATE POLICY {TRUSTED} ON {table} TO {roles} USING (true) WITH CHECK (true)"


def _release(tables: Sequence[str], schema: str | None) -> Iterator[str]:
    for name in tables:
        table = Place(schema).qualified(name)
        yield f"DROP POLICY {TENANT} ON {table}"
        yield f"DROP POLICY IF EXISTS {TRUSTED} ON {table}"
        yield f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY"
        yield f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY"
