"""Row-level security: a tenant's role reaches no other tenant's rows, whatever SQL it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tenancy
from alembic import command
from alembic.config import Config
from builders import config, id_of, put, values_of, version
from migration_helpers import MakeEngine, execute
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from tenancy import MODELS, dump, scoped
from test_upgrade_own_tables import environment

TABLES = [table.name for table in MODELS.tables]

REVISION = '''
"""Tenants are isolated."""

from ckpt_orm.migrations import isolate_tenants, release_tenants

revision = "isolated"
down_revision = "{before}"
branch_labels = None
depends_on = None

TABLES = {tables!r}


def upgrade() -> None:
    isolate_tenants(*TABLES, role_prefix={prefix!r}, trusted={trusted!r})


def downgrade() -> None:
    release_tenants(*TABLES)
'''


class Application:
    """Tables of tenants that its own revisions made, the last of which isolates them."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.prefix = engine, f"{engine.url.database}_"
        self.owner, self.served = f"{self.prefix}owner", f"{self.prefix}app"
        self.config: Config = environment(engine, tenancy.Base.metadata, folder, schemas=False)
        made: Any = command.revision(self.config, "tables", autogenerate=True)
        written = REVISION.format(
            before=made.revision, tables=TABLES, prefix=self.prefix, trusted=[self.served]
        )
        (folder / "versions" / "isolated.py").write_text(written)

    def role(self, name: str, *options: str) -> None:
        """A role that may log in and do to our rows what a saver does."""
        execute(self.engine, f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'p' {' '.join(options)}")

    def rights(self, *names: str) -> None:
        for name in names:
            rights = "SELECT, INSERT, UPDATE, DELETE"
            execute(self.engine, f'GRANT {rights} ON ALL TABLES IN SCHEMA public TO "{name}"')


@pytest.fixture
def application(
    postgres_url: URL, make_engine: MakeEngine, tmp_path: Path
) -> Iterator[Application]:
    engine = make_engine(postgres_url)
    found = Application(engine, tmp_path / "app")
    tenants = [f"{found.prefix}{tenant}" for tenant in ("acme", "other")]
    roles = [*tenants, found.owner, found.served, "a" + found.prefix]
    for role in roles:
        found.role(role)
    try:
        command.upgrade(found.config, "head")
        found.rights(*roles)
        for table in TABLES:
            execute(engine, f'ALTER TABLE {table} OWNER TO "{found.owner}"')
        for tenant in ("acme", "other"):
            saver = scoped(engine, tenant)
            assert saver.get_tuple(config("t")) is None  # and it knows how values are stored
            stored = put(saver, "t", {"a": [tenant], "log": ["x" * 70_000]})
            saver.put_writes(stored, [("a", tenant)], "task")
        yield found
    finally:
        for role in roles:
            execute(engine, f'DROP OWNED BY "{role}" CASCADE', f'DROP ROLE "{role}"')


@pytest.fixture
def as_role(application: Application) -> Iterator[Callable[[str], Engine]]:
    """An engine that logs in as a role."""
    made: list[Engine] = []

    def engine(role: str) -> Engine:
        made.append(create_engine(application.engine.url.set(username=role, password="p")))
        return made[-1]

    yield engine
    for one in made:
        one.dispose()


@pytest.fixture
def acme(application: Application, as_role: Callable[[str], Engine]) -> Engine:
    return as_role(f"{application.prefix}acme")


def seen(engine: Engine) -> set[tuple[str, ...]]:
    """The tenants of which each table shows rows."""
    with engine.connect() as connection:
        return {
            tuple(connection.scalars(text(f"SELECT DISTINCT tenant_id FROM {t} ORDER BY 1")))
            for t in TABLES
        }


def test_the_saver_works_as_the_tenants_role(acme: Engine, application: Application) -> None:
    before = dump(application.engine, "other")
    saver = scoped(acme)
    assert values_of(saver, config("t"))["a"] == ["acme"]
    versions = {"a": version()}
    new = put(saver, "t", {"a": ["more"]}, versions=versions)
    put(saver, "t", {"a": ["more"]}, id=id_of(new), versions=versions)
    saver.put_writes(new, [("a", 1), ("__error__", "e")], "task")
    saver.put_writes(new, [("a", 1), ("__error__", "e")], "task")
    saver.copy_thread("t", "u")
    saver.prune(["t"])
    assert saver.verify().ok
    saver.delete_thread("u")
    assert saver.count() == 1
    assert dump(application.engine, "other") == before


def test_a_saver_that_is_scoped_to_another_finds_nothing(acme: Engine) -> None:
    other = scoped(acme, "other")
    assert other.get_tuple(config("t")) is None
    assert list(other.list(None)) == list(other.threads()) == []
    with pytest.raises(Exception, match="42501"):
        put(other, "t", {"a": [1]})


ROW = {
    "agent_checkpoints": "thread_id, checkpoint_id, checkpoint) VALUES ('other', 'x', 'x', '{}'",
    "agent_checkpoint_blobs": (
        "thread_id, channel, version, type) VALUES ('other', 'x', 'x', 'x', 'x'"
    ),
    "agent_checkpoint_writes": (
        "thread_id, checkpoint_id, task_id, idx, channel, blob) "
        "VALUES ('other', 'x', 'x', 'x', 1, 'x', 'x'"
    ),
    "agent_checkpoint_segments": (
        "thread_id, channel, chain, start, data, digest) "
        "VALUES ('other', 'x', 'x', 'x', 0, 'x', 'x'"
    ),
}


@pytest.mark.parametrize("table", TABLES)
def test_raw_sql_reaches_no_other_tenants_rows(
    acme: Engine, application: Application, table: str
) -> None:
    before = dump(application.engine, "other")
    assert seen(acme) == {("acme",)}
    with acme.connect() as connection:
        for attempt in (
            f"SELECT count(*) FROM {table} WHERE tenant_id = 'other'",
            f"SELECT count(*) FROM {table} WHERE tenant_id <> 'acme' OR true AND tenant_id > 'b'",
            f"SELECT count(*) FROM (SELECT * FROM {table} FOR UPDATE) x WHERE tenant_id = 'other'",
        ):
            assert connection.scalar(text(attempt)) == 0
        for attempt in (
            f"UPDATE {table} SET thread_id = 'mine' WHERE tenant_id = 'other'",
            f"DELETE FROM {table} WHERE tenant_id = 'other'",
        ):
            assert connection.execute(text(attempt)).rowcount == 0
        connection.commit()
    refused = [
        f"INSERT INTO {table} (tenant_id, {ROW[table]})",
        f"UPDATE {table} SET tenant_id = 'other', thread_id = 'x'",
        f"INSERT INTO {table} SELECT * FROM {table} ON CONFLICT DO NOTHING; "
        f"UPDATE {table} SET tenant_id = 'other', thread_id = 'y'",
        f"TRUNCATE {table}",
        f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY",
        f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY",
        f"DROP POLICY ckpt_orm_tenant ON {table}",
        f"CREATE POLICY mine ON {table} USING (true)",
        f'SET ROLE "{application.prefix}other"',
        f'SET SESSION AUTHORIZATION "{application.prefix}other"',
        f'SET ROLE "{application.served}"',
        f"SET row_security = off; SELECT * FROM {table}",
        f'ALTER ROLE "{application.prefix}acme" BYPASSRLS',
        f'ALTER ROLE "{application.prefix}acme" RENAME TO "{application.prefix}x"',
    ]
    for attempt in refused:
        with acme.connect() as connection, pytest.raises(DBAPIError, match=r"\(psycopg\.errors"):
            connection.exec_driver_sql(attempt)
    assert dump(application.engine, "other") == before


@pytest.mark.parametrize("table", TABLES)
def test_a_copy_reaches_them_neither(acme: Engine, application: Application, table: str) -> None:
    before = dump(application.engine, "other")
    with acme.connect() as connection:
        cursor: Any = connection.connection.cursor()
        with cursor.copy(f"COPY (SELECT tenant_id FROM {table}) TO STDOUT") as copied:
            assert {bytes(row) for row in copied} == {b"acme\n"}
        with cursor.copy(f"COPY {table} (tenant_id) TO STDOUT") as copied:
            assert {bytes(row) for row in copied} == {b"acme\n"}
    with (
        acme.connect() as connection,
        pytest.raises(Exception, match="COPY FROM not supported with row-level security"),
        connection.connection.cursor().copy(f"COPY {table} FROM STDIN") as copied,  # type: ignore[attr-defined]
    ):
        copied.write(b"other\n")
    assert dump(application.engine, "other") == before


def test_a_setting_of_the_session_changes_nothing(acme: Engine) -> None:
    with acme.connect() as connection:
        connection.execute(text("SET app.tenant_id = 'other'"))
        connection.execute(text("SET search_path = public"))
        found = connection.scalars(text("SELECT DISTINCT tenant_id FROM agent_checkpoints"))
        assert list(found) == ["acme"]


def test_who_sees_what(application: Application, as_role: Callable[[str], Engine]) -> None:
    """The owner and a role of another name see nothing, one that is trusted sees all."""
    assert seen(as_role(application.owner)) == {()}
    assert seen(as_role("a" + application.prefix)) == {()}
    everybody = as_role(application.served)
    assert seen(everybody) == {("acme", "other")}
    assert values_of(scoped(everybody, "other"), config("t"))["a"] == ["other"]


def test_rows_are_still_found_by_index(acme: Engine, application: Application) -> None:
    execute(
        application.engine,
        "INSERT INTO agent_checkpoints (tenant_id, thread_id, checkpoint_id, checkpoint) "
        "SELECT 'tenant' || i % 50, 't' || i, 'x', '{}' FROM generate_series(1, 20000) i",
        "ANALYZE agent_checkpoints",
    )
    with acme.connect() as connection:
        plan = "\n".join(
            connection.scalars(text("EXPLAIN SELECT thread_id FROM agent_checkpoints"))
        )
    assert "Index" in plan
    assert "Seq Scan" not in plan


def test_there_and_back(application: Application, as_role: Callable[[str], Engine]) -> None:
    command.check(application.config)
    command.downgrade(application.config, "-1")
    assert seen(as_role("a" + application.prefix)) == {("acme", "other")}
    assert seen(as_role(application.owner)) == {("acme", "other")}
    command.upgrade(application.config, "head")
    assert seen(as_role(application.owner)) == {()}


def test_on_sqlite_it_does_nothing(
    sqlite_url: URL, make_engine: MakeEngine, tmp_path: Path
) -> None:
    application = Application(make_engine(sqlite_url), tmp_path / "app")
    command.upgrade(application.config, "head")
    command.check(application.config)
    command.downgrade(application.config, "-1")
