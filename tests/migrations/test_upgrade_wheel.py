"""The built wheel, in an empty environment outside of the repository, passes A, B and C."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from hosts import UP, Host
from migration_helpers import MakeEngine, tables
from sqlalchemy import URL, text
from test_upgrade_offline import psql

from ckpt_orm import migrations
from ckpt_orm.migrations.place import TABLES, VERSION_TABLE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([sys.executable, "-m", "build", *options, str(ROOT)], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with nothing in it but the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, f"{wheel}[postgres]"], check=True, cwd=folder)
    return python


@pytest.fixture
def host(
    request: pytest.FixtureRequest, installed: Path, tmp_path: Path, database_url: URL
) -> Host:
    return Host(request.param, tmp_path, installed, database_url)


def test_the_wheel_holds_the_environment(wheel: Path) -> None:
    with closing(zipfile.ZipFile(wheel)) as archive:
        names = set(archive.namelist())
    migrations_folder = {name for name in names if name.startswith("ckpt_orm/migrations/")}
    in_tree = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "ckpt_orm" / "migrations").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert migrations_folder == in_tree
    assert not [name for name in names if name.startswith(("alembic", "tests", "examples"))]


@pytest.mark.parametrize("host", UP, indirect=True)
def test_the_example(host: Host, database_url: URL, make_engine: MakeEngine) -> None:
    engine = make_engine(database_url)
    ours = {host.prefix + name for name in (*TABLES, VERSION_TABLE)}

    host.up("check", "app.py")

    assert {"orders", *ours} <= tables(engine)
    with engine.begin() as connection:
        migrations.check(connection, prefix=host.prefix)
        stored = connection.execute(text(f"SELECT created_at FROM {host.prefix}checkpoints"))
        assert stored.scalar_one() is not None
        connection.execute(text(f"DELETE FROM {host.prefix}checkpoints"))

    host.down()

    assert tables(engine) & ours <= {host.prefix + VERSION_TABLE}
    assert "orders" in tables(engine)
    with engine.connect() as connection:
        assert migrations.current(connection, prefix=host.prefix) is None


@pytest.mark.parametrize("example", UP)
def test_the_example_prints_what_it_would_do(
    example: str, installed: Path, tmp_path: Path, postgres_url: URL, make_engine: MakeEngine
) -> None:
    host = Host(example, tmp_path, installed, postgres_url)
    psql(postgres_url, host.printed())
    with make_engine(postgres_url).connect() as connection:
        migrations.check(connection, prefix=host.prefix)
    host.run("check", "app.py")
