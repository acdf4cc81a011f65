"""The chain of revisions: it is whole, makes what the models say, and data survives each step."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from migration_helpers import MakeEngine, execute, tables
from sqlalchemy import URL, Engine, inspect, text

import ckpt_orm
from ckpt_orm import migrations
from ckpt_orm.errors import DataWouldBeLost
from ckpt_orm.migrations import HEAD, REVISIONS
from ckpt_orm.migrations.compare import differences
from ckpt_orm.migrations.place import TABLES, VERSION_TABLE, Place
from ckpt_orm.migrations.run import configuration
from ckpt_orm.migrations.script import DELETE
from ckpt_orm.models import Base, declare

PACKAGE = Path(ckpt_orm.__file__).parent
ROOT = PACKAGE.parent
STEPS = ["base", *REVISIONS]

ROWS = (
    "INSERT INTO {checkpoints} (thread_id, checkpoint_id, checkpoint, metadata)"
    """ VALUES ('ü', '1', '{{"é": [1, null]}}', '{{"step": -1}}')""",
    "INSERT INTO {checkpoint_blobs} (thread_id, channel, version, type, blob)"
    " VALUES ('ü', 'c', '1', 'bytes', {blob}), ('ü', 'd', '1', 'empty', NULL)",
    "INSERT INTO {checkpoint_writes}"
    " (thread_id, checkpoint_id, task_id, idx, channel, type, blob)"
    " VALUES ('ü', '1', 'task', -1, 'c', 'bytes', {blob})",
)


def fill(engine: Engine, place: Place = Place()) -> None:  # noqa: B008, it is immutable
    blob = "'\\x00ff61'::bytea" if engine.dialect.name == "postgresql" else "x'00ff61'"
    names = {table: place.sql(table) for table in TABLES}
    with engine.begin() as connection:
        for row in ROWS:
            connection.exec_driver_sql(row.format(**names, blob=blob))


def rows(engine: Engine, place: Place = Place()) -> dict[str, list[dict[str, Any]]]:  # noqa: B008
    there = {table for table in TABLES if inspect(engine).has_table(place.name(table))}
    found: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
    with engine.connect() as connection:
        for table in there:
            result = connection.execute(text(f"SELECT * FROM {place.sql(table)} ORDER BY 1, 3, 4"))
            found[table] = [dict(row) for row in result.mappings()]
    return found


def move(engine: Engine, to: str, place: Place = Place(), **options: Any) -> None:  # noqa: B008
    """Run Alembic to a revision, whichever way that is."""
    with engine.begin() as connection:
        found = migrations.current(connection, schema=place.schema, prefix=place.prefix)
        up = STEPS.index(found or "base") < STEPS.index(to)
        run = command.upgrade if up else command.downgrade
        run(configuration(place, connection=connection, **options), to)


def test_the_revisions_are_the_scripts() -> None:
    scripts = ScriptDirectory(PACKAGE / "migrations")
    assert tuple(s.revision for s in reversed(list(scripts.walk_revisions()))) == REVISIONS
    assert scripts.get_heads() == [HEAD]
    base = scripts.get_revision(REVISIONS[0])
    assert base is not None
    assert base.branch_labels == {"ckpt_orm"}


def test_no_revision_imports_the_models() -> None:
    for path in (PACKAGE / "migrations" / "versions").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert "models" not in str(node.module), path
                assert "models" not in [name.name for name in node.names], path


def test_the_folder_alembic_shadows_nothing() -> None:
    assert not (ROOT / "alembic" / "__init__.py").exists()
    ours, theirs = ROOT / "alembic", PACKAGE / "migrations"
    assert (ours / "script.py.mako").read_text() == (theirs / "script.py.mako").read_text()


@pytest.mark.parametrize(
    "place", [Place(), Place(prefix="x_"), Place("agents"), Place("agents", "x_")], ids=str
)
def test_the_chain_makes_what_the_models_say(
    request: pytest.FixtureRequest, make_engine: MakeEngine, place: Place
) -> None:
    for dialect in ["postgres"] if place.schema else ["postgres", "sqlite"]:
        engine = make_engine(request.getfixturevalue(f"{dialect}_url"))
        migrations.setup_engine(engine, schema=place.schema, prefix=place.prefix)
        with engine.connect() as connection:
            assert differences(connection, place) == []


def reflected(engine: Engine, schema: str | None, prefix: str) -> dict[str, Any]:
    """All that a database knows of our tables, in words: more than autogenerate compares."""
    inspector = inspect(engine)
    return {
        name: {
            "columns": [
                {**column, "type": column["type"].compile(engine.dialect)}
                for column in inspector.get_columns(prefix + name, schema)
            ],
            "key": inspector.get_pk_constraint(prefix + name, schema),
            "indexes": inspector.get_indexes(prefix + name, schema),
            "unique": inspector.get_unique_constraints(prefix + name, schema),
            "foreign": inspector.get_foreign_keys(prefix + name, schema),
            "checks": inspector.get_check_constraints(prefix + name, schema),
        }
        for name in TABLES
    }


def test_the_chain_makes_what_create_all_makes(engine: Engine) -> None:
    migrations.setup_engine(engine)
    by_chain = reflected(engine, None, "")
    move(engine, "base")
    Base.metadata.create_all(engine)
    assert reflected(engine, None, "") == by_chain


def test_each_difference_is_seen(engine: Engine) -> None:
    migrations.setup_engine(engine)
    execute(
        engine,
        "DROP TABLE checkpoint_writes",
        "ALTER TABLE checkpoint_blobs DROP COLUMN digest",
        "ALTER TABLE checkpoint_blobs ADD COLUMN mine INTEGER",
        "CREATE INDEX mine ON checkpoints (type)",
        "CREATE TABLE an_applications (id INTEGER)",
    )
    expected = {
        "table checkpoint_writes: missing",
        "column checkpoint_blobs.digest: missing",
        "column checkpoint_blobs.mine: not one of ours",
        "index mine: not one of ours",
    }
    if engine.dialect.name == "postgresql":
        execute(
            engine,
            "ALTER TABLE checkpoints ALTER COLUMN created_at DROP DEFAULT",
            "ALTER TABLE checkpoints ALTER COLUMN metadata DROP NOT NULL",
        )
        expected |= {
            "column checkpoints.created_at: default is None, not now()",
            "column checkpoints.metadata: nullable is True, not False",
        }
    with engine.connect() as connection:
        assert set(differences(connection, Place())) == expected


@pytest.mark.parametrize("place", [Place(), Place(prefix="x_")], ids=["", "prefix"])
def test_data_survives_each_step_down_and_up(engine: Engine, place: Place) -> None:
    move(engine, "ckpt_orm_0001", place)
    fill(engine, place)
    before = rows(engine, place)
    for lower, upper in itertools.pairwise(REVISIONS):
        for revision in (upper, lower, upper):
            move(engine, revision, place)
            after = rows(engine, place)
            assert {
                table: [{name: row[name] for name in before[table][0]} for row in after[table]]
                for table in TABLES
                if before[table]
            } == {table: found for table, found in before.items() if found}
    assert after["checkpoints"][0]["created_at"] is None
    assert after["checkpoint_blobs"][0]["digest"] is None


def test_logs_are_not_dropped_unasked(engine: Engine) -> None:
    migrations.setup_engine(engine)
    columns = "thread_id, channel, chain, start, data, digest"
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO checkpoint_segments ({columns}) VALUES ('t', 'c', '1', 0, '2', '3')"
        )
    with pytest.raises(DataWouldBeLost, match="ckpt-orm unpack"):
        move(engine, "ckpt_orm_0003")
    assert len(rows(engine)["checkpoint_segments"]) == 1


def test_a_new_row_has_its_time(engine: Engine) -> None:
    migrations.setup_engine(engine)
    fill(engine)
    assert rows(engine)["checkpoints"][0]["created_at"] is not None


def test_the_last_step_down_deletes_nothing_unasked(engine: Engine) -> None:
    migrations.setup_engine(engine)
    fill(engine)
    before = rows(engine)
    with pytest.raises(DataWouldBeLost, match="--delete-data"):
        move(engine, "base")
    assert rows(engine) == before
    move(engine, "base", **{DELETE: True})
    assert tables(engine) == {VERSION_TABLE}
    migrations.setup_engine(engine)
    assert set(map(len, rows(engine).values())) == {0}


def test_blobs_are_compressed_with_lz4_where_the_server_has_it(
    postgres_url: URL, make_engine: MakeEngine
) -> None:
    engine = make_engine(postgres_url)
    asked = text(
        "SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"
    )
    compression = text(
        "SELECT DISTINCT attcompression FROM pg_attribute WHERE attname = 'blob'"
        " AND attrelid IN ('checkpoint_blobs'::regclass, 'checkpoint_writes'::regclass)"
    )
    migrations.setup_engine(engine)
    with engine.connect() as connection:
        expected = "l" if connection.scalar(asked) else ""
        assert connection.execute(compression).scalars().all() == [expected]
    move(engine, "ckpt_orm_0002")
    with engine.connect() as connection:
        assert connection.execute(compression).scalars().all() == [""]


def test_a_revision_runs_twice_without_harm(engine: Engine) -> None:
    migrations.setup_engine(engine)
    fill(engine)
    before = rows(engine)
    execute(engine, f"DELETE FROM {VERSION_TABLE}")
    migrations.setup_engine(engine)
    assert rows(engine) == before


def test_the_models_of_a_place_are_the_tables_of_that_place() -> None:
    names = [table.fullname for table in declare(schema="agents", prefix="x_").tables]
    assert names == [f"agents.x_{table}" for table in TABLES]


def test_every_revision_says_what_it_does() -> None:
    for script in ScriptDirectory(PACKAGE / "migrations").walk_revisions():
        assert re.match(r"[A-Z].*\.$", script.doc), script.doc
