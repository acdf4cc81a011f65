"""The `ckpt-orm` command: what it prints, what it exits with, and what it never prints."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from migration_helpers import MakeEngine, execute, tables
from servers import execute as execute_on
from sqlalchemy import URL, Engine, make_url
from test_upgrade_chain import fill
from test_upgrade_offline import dump, psql
from typer.main import get_command
from typer.testing import CliRunner

import ckpt_orm
from ckpt_orm import migrations
from ckpt_orm.cli.commands import app
from ckpt_orm.migrations import HEAD, REVISIONS
from ckpt_orm.migrations.connect import sync_url
from ckpt_orm.migrations.place import TABLES, VERSION_TABLE

COMMANDS = [
    *("upgrade", "downgrade", "current", "history", "check", "sql", "stamp", "grant"),
    *("sweep", "verify", "demo"),
]


def run(*arguments: str, url: URL | str | None = None) -> Any:
    """Call the command, with the URL in the environment."""
    written = url.render_as_string(hide_password=False) if isinstance(url, URL) else url
    environment = {"CKPT_ORM_DATABASE_URL": written, "COLUMNS": "200"}
    return CliRunner().invoke(app, list(arguments), env=environment)


def printed(*arguments: str, url: URL | None = None) -> str:
    result = run(*arguments, url=url)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_databases_life(database_url: URL, make_engine: MakeEngine) -> None:
    assert printed("upgrade", "ckpt_orm_0001", url=database_url) == "base -> ckpt_orm_0001\n"
    assert printed("upgrade", url=database_url) == f"ckpt_orm_0001 -> {HEAD}\n"
    assert printed("upgrade", url=database_url) == f"{HEAD}: nothing to do\n"
    assert printed("current", url=database_url) == f"{HEAD}\n"
    assert printed("downgrade", "ckpt_orm_0001", url=database_url) == f"{HEAD} -> ckpt_orm_0001\n"
    assert printed("downgrade", "base", url=database_url) == "ckpt_orm_0001 -> base\n"
    assert tables(make_engine(database_url)) == {VERSION_TABLE}
    assert printed("current", url=database_url) == "base\n"


def test_upgrade_never_goes_back(database_url: URL) -> None:
    printed("upgrade", url=database_url)
    assert "nothing to do" in printed("upgrade", "ckpt_orm_0001", url=database_url)
    assert printed("current", url=database_url) == f"{HEAD}\n"


def test_the_base_is_always_reached(database_url: URL) -> None:
    assert printed("upgrade", "base", url=database_url) == "base: nothing to do\n"
    run("upgrade", url=database_url)
    assert printed("upgrade", "base", url=database_url) == f"{HEAD}: nothing to do\n"
    failed = run("upgrade", "ckpt_orm_0999", url=database_url)
    assert failed.exit_code == 1
    assert "there is no revision 'ckpt_orm_0999'; there are base, ckpt_orm_0001" in failed.stderr


def test_a_prefix(database_url: URL, make_engine: MakeEngine) -> None:
    printed("upgrade", "--prefix", "x_", url=database_url)
    assert tables(make_engine(database_url)) == {"x_" + t for t in (*TABLES, VERSION_TABLE)}
    assert printed("current", "--prefix", "x_", url=database_url) == f"{HEAD}\n"
    assert printed("current", url=database_url) == "base\n"


def test_a_schema(postgres_url: URL, make_engine: MakeEngine) -> None:
    printed("upgrade", "--schema", "agents", url=postgres_url)
    assert tables(make_engine(postgres_url), "agents") == {*TABLES, VERSION_TABLE}
    assert run("check", "--schema", "agents", url=postgres_url).exit_code == 0
    assert run("check", url=postgres_url).exit_code == 1


def test_rows_are_deleted_only_on_request(database_url: URL, make_engine: MakeEngine) -> None:
    printed("upgrade", url=database_url)
    fill(make_engine(database_url))
    refused = run("downgrade", "base", url=database_url)
    assert refused.exit_code == 1
    assert "--delete-data" in refused.stderr
    assert printed("current", url=database_url) == f"{HEAD}\n"
    assert printed("downgrade", "base", "--delete-data", url=database_url) == f"{HEAD} -> base\n"


def test_check(engine: Engine, database_url: URL) -> None:
    assert tables(engine) == set()  # SQLite's file is there from now on
    missing = run("check", url=database_url)
    assert missing.exit_code == 1
    assert "table checkpoints: missing" in missing.stdout
    printed("upgrade", "ckpt_orm_0001", url=database_url)
    behind = run("check", url=database_url)
    assert behind.exit_code == 1
    assert "to come: ckpt_orm_0002" in behind.stdout
    assert "column checkpoints.created_at: missing" in behind.stdout
    printed("upgrade", url=database_url)
    assert printed("check", url=database_url) == f"{HEAD}, this release needs {HEAD}\n"
    execute(engine, "ALTER TABLE checkpoint_blobs DROP COLUMN digest")
    altered = run("check", url=database_url)
    assert altered.exit_code == 1
    assert "column checkpoint_blobs.digest: missing" in altered.stdout
    execute(engine, f"UPDATE {VERSION_TABLE} SET version_num = 'ckpt_orm_0999'")
    assert "newer than this release" in printed("check", url=database_url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:sesame@localhost:1/none",
        "postgresql+asyncpg://me:sesame@localhost:1/none",
        "sqlite:////no/such/folder/file.db?sesame",
        "nonsense-sesame",
        "oracle+nothing://me:sesame@localhost/none",
        "mysql://me:sesame@localhost/none",
        "postgresql+nothing://me:sesame@localhost/none",
        "postgresql://me:open@sesame:1@localhost/none",
        "postgresql://me:sesame@localhost:99999/none",
    ],
)
def test_unreachable(url: str) -> None:
    result = run("check", url=url)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("ckpt-orm: ")
    assert "Traceback" not in result.output
    assert "sesame" not in result.output.replace("?sesame", "")


#: What reads a database, or changes one that is there.
NEEDS_ONE = [
    *(["current"], ["history"], ["check"], ["downgrade", "base"], ["stamp", "head"]),
    *(["sweep", "--keep-last", "1"], ["verify"], ["verify", "--repair"], ["pack"], ["unpack"]),
]


@pytest.mark.parametrize("command", NEEDS_ONE, ids=" ".join)
@pytest.mark.parametrize(
    "named", ["sqlite:///{}", "sqlite+aiosqlite:///{}", "sqlite:///file:{}?uri=true", "relative"]
)
def test_a_file_that_is_not_there_is_not_made(
    command: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file, which may be mistyped, and the exit code says unreachable."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mis typed.db"
    url = "sqlite:///mis typed.db" if named == "relative" else named.format(file)
    result = run(*command, url=url.replace(" ", "%20") if "uri=true" in url else url)
    assert result.exit_code == 2, result.output
    assert f"there is no database {str(file)!r}" in result.stderr
    assert "ckpt-orm upgrade" in result.stderr
    assert list(tmp_path.iterdir()) == []
    assert printed("upgrade", url=make_url(url)) == f"base -> {HEAD}\n"
    if command != ["downgrade", "base"]:
        printed(*command, url=make_url(url))


def test_no_database() -> None:
    result = run("check")
    assert result.exit_code == 2
    assert "CKPT_ORM_DATABASE_URL" in result.stderr


def test_a_foreign_table(engine: Engine, database_url: URL) -> None:
    execute(engine, "CREATE TABLE checkpoints (id INTEGER PRIMARY KEY)")
    result = run("upgrade", url=database_url)
    assert result.exit_code == 1
    assert "is not a checkpoint table" in result.stderr
    assert tables(engine) == {"checkpoints"}


def test_stamp(database_url: URL) -> None:
    printed("upgrade", url=database_url)
    assert printed("stamp", "ckpt_orm_0001", url=database_url) == f"{HEAD} -> ckpt_orm_0001\n"
    assert printed("upgrade", url=database_url) == f"ckpt_orm_0001 -> {HEAD}\n"
    assert run("stamp", "nonsense", url=database_url).exit_code == 1


def test_history(database_url: URL) -> None:
    lines = printed("history").splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(REVISIONS)
    printed("upgrade", "ckpt_orm_0001", url=database_url)
    assert printed("history", url=database_url).count("✓") == 1


def test_sql_is_replayed_by_psql(postgres_url: URL, make_engine: MakeEngine) -> None:
    psql(postgres_url, printed("sql", "--schema", "agents"))
    assert run("check", "--schema", "agents", url=postgres_url).exit_code == 0
    before = dump(postgres_url)
    psql(postgres_url, printed("sql", "ckpt_orm_0001", "--since", "head", "--schema", "agents"))
    assert run("check", "--schema", "agents", url=postgres_url).exit_code == 1
    psql(postgres_url, printed("sql", "--since", "ckpt_orm_0001", "--schema", "agents"))
    assert dump(postgres_url) == before


def test_sql_of_sqlite(tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(tmp_path / "replayed.db")) as connection:
        connection.executescript(printed("sql", "--dialect", "sqlite"))
    assert run("check", url=make_url(f"sqlite:///{tmp_path / 'replayed.db'}")).exit_code == 0


def test_grant(postgres_url: URL, make_engine: MakeEngine) -> None:
    role = f"app_{postgres_url.database}"
    execute_on(postgres_url, f'CREATE ROLE "{role}"')
    try:
        printed("upgrade", "--schema", "agents", url=postgres_url)
        psql(postgres_url, printed("grant", role, "--schema", "agents"))
        with make_engine(postgres_url).connect() as connection:
            connection.exec_driver_sql(f'SET ROLE "{role}"')
            migrations.check(connection, schema="agents")
            connection.exec_driver_sql("DELETE FROM agents.checkpoints")
    finally:
        execute_on(postgres_url, f'DROP OWNED BY "{role}"', f'DROP ROLE "{role}"')


def test_percent_signs_in_a_password(postgres_url: URL, make_engine: MakeEngine) -> None:
    role, password = f"app_{postgres_url.database}", "50%(here)s%% off"
    execute_on(postgres_url, f"CREATE ROLE \"{role}\" SUPERUSER LOGIN PASSWORD '{password}'")
    url = postgres_url.set(username=role, password=password)
    try:
        assert "%25" in url.render_as_string(hide_password=False)
        assert printed("upgrade", url=url) == f"base -> {HEAD}\n"
        arguments = ["-x", f"url={url.render_as_string(hide_password=False)}", "current"]
        root = Path(__file__).parents[2]
        done = subprocess.run(
            [sys.executable, "-m", "alembic", *arguments], cwd=root, capture_output=True, text=True
        )
        assert HEAD in done.stdout, done.stderr
    finally:
        execute_on(postgres_url, f'DROP OWNED BY "{role}"', f'DROP ROLE "{role}"')


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("postgresql://h/d", "postgresql+psycopg"),
        ("postgres://h/d", "postgresql+psycopg"),
        ("postgresql+asyncpg://h/d", "postgresql+psycopg"),
        ("postgresql+psycopg_async://h/d", "postgresql+psycopg"),
        ("postgresql+psycopg2://h/d", "postgresql+psycopg2"),
        ("sqlite+aiosqlite:///f", "sqlite"),
        ("sqlite:///f", "sqlite"),
    ],
)
def test_urls_as_applications_write_them(given: str, meant: str) -> None:
    assert sync_url(given).drivername == meant


def test_asyncpg_alone_is_enough(postgres_url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt_orm.migrations.connect.find_spec", lambda _: None)
    url = postgres_url.set(drivername="postgresql")
    assert sync_url(url).drivername == "postgresql+asyncpg"
    assert printed("upgrade", url=url) == f"base -> {HEAD}\n"
    assert printed("check", url=url) == f"{HEAD}, this release needs {HEAD}\n"
    assert printed("sweep", "--keep-last", "1", url=url).startswith("deleted 0 checkpoints")
    assert printed("verify", url=url).startswith("0 threads")
    assert printed("downgrade", "base", url=url) == f"{HEAD} -> base\n"


def test_every_command_has_help() -> None:
    listed = printed("--help")
    for command in COMMANDS:
        assert f" {command} " in listed
        if command != "demo":
            assert "--help" in printed(command, "--help")


GROUP: Any = get_command(app)


@pytest.mark.parametrize("command", [name for name in GROUP.commands if name != "demo"])
def test_help_names_every_option_whole(command: str) -> None:
    told = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"}).stdout
    params = GROUP.commands[command].params
    names = [name for one in params for name in (*one.opts, *one.secondary_opts)]
    assert [name for name in names if name.startswith("--") and name not in told.split()] == []
    assert max(map(len, told.splitlines())) <= 80


@pytest.mark.parametrize("command", [["upgrade"], *NEEDS_ONE], ids=" ".join)
def test_a_database_in_memory_is_of_no_use(command: list[str]) -> None:
    for url in ("sqlite://", "sqlite+aiosqlite:///:memory:"):
        result = run(*command, url=url)
        assert result.exit_code == 2
        assert result.stderr.startswith("ckpt-orm: a database in memory is gone with the command")


@pytest.mark.parametrize("command", [["upgrade"], *NEEDS_ONE], ids=" ".join)
def test_a_schema_that_sqlite_has_not(command: list[str], sqlite_url: URL) -> None:
    printed("upgrade", url=sqlite_url)
    result = run(*command, "--schema", "nope", url=sqlite_url)
    assert result.exit_code == 1
    assert result.stderr.startswith("ckpt-orm: SQLite has no schema 'nope' here: leave the schema")


def test_it_tells_its_release() -> None:
    assert printed("--version") == f"ckpt-orm {ckpt_orm.__version__}\n"
    assert "--version" in printed("--help")
    assert version("ckpt-orm") == ckpt_orm.__version__


def test_sql_of_another_database() -> None:
    done = run("sql", "--dialect", "mysql")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "write postgresql or sqlite" in done.stderr


def test_without_the_extra_it_says_how_to_get_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['typer'] = None; from ckpt_orm.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'ckpt-orm[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_is_installed(sqlite_url: URL) -> None:
    url = sqlite_url.render_as_string()
    for command in (["ckpt-orm"], [sys.executable, "-m", "ckpt_orm"]):
        arguments: list[Any] = [*command, "upgrade", "--url", url]
        path = {"PATH": str(Path(sys.executable).parent)}
        done = subprocess.run(arguments, capture_output=True, text=True, env=path)
        assert done.returncode == 0, done.stderr


def test_a_reader_who_has_seen_enough_is_no_failure_of_a_server() -> None:
    command = [sys.executable, "-m", "ckpt_orm", "sql"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()  # before anything was written
    assert process.stderr is not None
    with process.stderr:
        said = process.stderr.read()
    assert process.wait(timeout=60) != 0
    assert "server" not in said
