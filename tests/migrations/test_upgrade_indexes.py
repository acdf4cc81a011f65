"""An index in a revision: concurrent on a table with rows, repaired if a build was broken off."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from migration_helpers import MakeEngine, execute
from sqlalchemy import URL, Engine, event, inspect, text
from sqlalchemy.exc import IntegrityError
from test_upgrade_chain import fill
from test_upgrade_offline import psql

import ckpt_orm.migrations
from ckpt_orm import migrations
from ckpt_orm.migrations import HEAD
from ckpt_orm.migrations.locks import exclusively, interrupted
from ckpt_orm.migrations.place import Place
from ckpt_orm.migrations.run import configuration

VERSIONS = Path(ckpt_orm.migrations.__file__).parent / "versions"
REVISION = f'''
from ckpt_orm.migrations.script import create_index, record
revision, down_revision = "ckpt_orm_next", "{HEAD}"
def upgrade():
    create_index("by_type", "checkpoints", "type, thread_id")
    record(revision)
'''
INDEX = {"by_type": ["type", "thread_id"]}

Prepare = Callable[..., Config]


@pytest.fixture
def prepared(tmp_path: Path) -> Prepare:
    """A configuration in which one more revision follows the newest."""
    (tmp_path / "next.py").write_text(REVISION)

    def prepare(place: Place, **attributes: object) -> Config:
        config = configuration(place, **attributes)
        config.set_main_option("version_locations", f"{VERSIONS}\n{tmp_path}")
        return config

    return prepare


def upgrade(engine: Engine, prepared: Prepare, place: Place) -> list[str]:
    """Upgrade as `setup` does, and return the statements that made an index."""
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with engine.connect() as connection, exclusively(connection, place):
        command.upgrade(prepared(place, connection=connection), "head")
    return [statement for statement in statements if statement.startswith("CREATE INDEX")]


def indexes(engine: Engine, place: Place) -> dict[str, list[str | None]]:
    found = inspect(engine).get_indexes(place.name("checkpoints"), place.schema)
    return {str(index["name"]): index["column_names"] for index in found}


@pytest.mark.parametrize("level", [None, "AUTOCOMMIT", "SERIALIZABLE"])
def test_a_table_with_rows_is_indexed_concurrently(
    postgres_url: URL, make_engine: MakeEngine, prepared: Prepare, level: str | None
) -> None:
    engine = make_engine(postgres_url, **({"isolation_level": level} if level else {}))
    place = Place("agents")
    migrations.setup_engine(engine, schema="agents")
    fill(engine, place)
    (statement,) = upgrade(engine, prepared, place)
    assert "CONCURRENTLY" in statement
    assert indexes(engine, place) == INDEX
    with engine.connect() as connection:
        assert migrations.current(connection, schema="agents") == "ckpt_orm_next"
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        assert connection.exec_driver_sql(held).scalar() == 0


def test_an_empty_table_is_indexed_inside_the_transaction(
    engine: Engine, prepared: Prepare
) -> None:
    migrations.setup_engine(engine)
    (statement,) = upgrade(engine, prepared, Place())
    assert "CONCURRENTLY" not in statement
    assert indexes(engine, Place()) == INDEX


def test_the_callers_transaction_is_not_interrupted(engine: Engine, prepared: Prepare) -> None:
    migrations.setup_engine(engine)
    fill(engine)
    with engine.connect() as connection, connection.begin() as transaction:
        with exclusively(connection, Place()):
            command.upgrade(prepared(Place(), connection=connection), "head")
        transaction.rollback()
    assert indexes(engine, Place()) == {}


def test_a_build_that_was_broken_off_is_repaired(
    postgres_url: URL, make_engine: MakeEngine, prepared: Prepare
) -> None:
    engine = make_engine(postgres_url)
    migrations.setup_engine(engine)
    execute(
        engine,
        "INSERT INTO checkpoints (thread_id, checkpoint_id, type, checkpoint)"
        " VALUES ('a', '1', 'same', '{}'), ('a', '2', 'same', '{}')",
    )
    broken = make_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with pytest.raises(IntegrityError):
        execute(broken, "CREATE UNIQUE INDEX CONCURRENTLY by_type ON checkpoints (type)")
    assert "by_type" in indexes(engine, Place())
    upgrade(engine, prepared, Place())
    assert indexes(engine, Place()) == INDEX
    with engine.connect() as connection:
        invalid = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
        assert connection.exec_driver_sql(invalid).scalar() == 0


def test_psql_builds_it_too(
    postgres_url: URL, make_engine: MakeEngine, prepared: Prepare, tmp_path: Path
) -> None:
    with (tmp_path / "script.sql").open("w") as buffer:
        config = prepared(Place(), dialect="postgresql")
        config.output_buffer = buffer
        command.upgrade(config, "head", sql=True)
    psql(postgres_url, (tmp_path / "script.sql").read_text())
    assert indexes(make_engine(postgres_url), Place()) == INDEX


def test_two_processes_build_one(
    postgres_url: URL, make_engine: MakeEngine, prepared: Prepare, tmp_path: Path
) -> None:
    engine = make_engine(postgres_url)
    migrations.setup_engine(engine)
    fill(engine)
    ini = tmp_path / "alembic.ini"
    ini.write_text(
        "[alembic]\nscript_location = ckpt_orm:migrations\npath_separator = newline\n"
        f"version_locations =\n    {VERSIONS}\n    {tmp_path}\n"
    )
    url = f"url={postgres_url.render_as_string(hide_password=False)}"
    arguments = ["-m", "alembic", "-c", str(ini), "-x", url, "upgrade", "head"]
    started = [
        subprocess.Popen([sys.executable, *arguments], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], errors
    assert indexes(engine, Place()) == INDEX


#: Waits for the tables, looking every half second.
WAIT = """
import sys
from sqlalchemy import create_engine
from ckpt_orm.migrations import locks
from ckpt_orm.migrations.place import Place
locks._PAUSE = 0.5
with create_engine(sys.argv[1]).connect() as connection:
    if sys.argv[2] == "a caller's":
        connection.begin()
    with locks.exclusively(connection, Place()):
        pass
"""


@contextmanager
def waiting_process(url: URL, whose: str) -> Iterator[None]:
    arguments = [url.render_as_string(hide_password=False), whose]
    with subprocess.Popen([sys.executable, "-c", WAIT, *arguments]) as process:
        try:
            yield
            assert process.wait(30) == 0
        finally:
            process.kill()


@contextmanager
def waiting_thread(engine: Engine) -> Iterator[None]:
    def wait() -> None:
        with engine.begin() as connection:
            assert connection.scalar(text("SELECT :one"), {"one": "1"}) == "1"
            with exclusively(connection, Place()):
                pass

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait)
        yield
        waiting.result(30)


@pytest.mark.parametrize("who", ["our own", "a caller's", "a thread"])
def test_a_build_does_not_wait_for_who_waits_for_it(
    postgres_url: URL, make_engine: MakeEngine, who: str
) -> None:
    """It would, for a transaction with a snapshot that is older than the index."""
    engine = make_engine(postgres_url)
    migrations.setup_engine(engine)
    fill(engine)
    others = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND state = 'idle in transaction'"
    )
    with ExitStack() as stack, engine.connect() as connection, exclusively(connection, Place()):
        thread = who == "a thread"
        waiting = waiting_thread(engine) if thread else waiting_process(postgres_url, who)
        stack.enter_context(waiting)
        with interrupted(connection, Place()):
            while not connection.scalar(others):
                time.sleep(0.05)
            time.sleep(0.6)
            connection.exec_driver_sql("SET statement_timeout = '10s'")
            connection.exec_driver_sql("CREATE INDEX CONCURRENTLY by_type ON checkpoints (type)")
    assert "by_type" in indexes(engine, Place())
