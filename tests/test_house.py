"""The rules of the house: which file may import which, and how long a file is."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ckpt_orm

PACKAGE = Path(ckpt_orm.__file__).parent

#: Rooms in the order of their floors: a file imports only from floors below its own.
FLOORS = [
    {"version", "errors", "forks", "words", "reasons", "once"},
    {"documents", "models", "columns", "scope", "growth", "failures", "compression", "modes"}
    | {"names", "urls", "options"},
    {"rows", "migrations", "refusals", "retries"},
    {"logs", "messages", "parcels", "stretches", "unchanged"},
    {"codec"},
    {"statements"},
    {"lanes"},
    {"operations", "engines", "lending"},
    {"waiting", "spares"},
    {"combining"},
    {"history", "retention", "runners"},
    {"guests"},
    {"tenants"},
    {"policies"},
    {"finding", "sweeping", "anatomy", "compacting"},
    {"verifying"},
    {"packing"},
    {"upkeep"},
    {"lifetime", "removing"},
    {"saver"},
    {"__init__"},
    {"cli", "__main__"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def rooms_imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("ckpt_orm.")}
    return found & FLOOR.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    for other in rooms_imported(path) - {room(path)}:
        assert FLOOR[other] <= FLOOR[room(path)], f"{room(path)} imports {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_is_a_room_one_can_look_over(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_the_codec_knows_no_database() -> None:
    for name in ("codec.py", "rows.py", "documents.py", "errors.py"):
        assert "sqlalchemy" not in (PACKAGE / name).read_text().replace("SQLAlchemy", "")


def test_importing_the_saver_imports_neither_alembic_nor_asyncio_engines() -> None:
    code = (
        "import sys; from ckpt_orm import SQLAlchemySaver; "
        "print([m for m in ('alembic', 'sqlalchemy.ext.asyncio', 'psycopg', 'typer') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_models_and_migrations_do_not_wait_for_langchain() -> None:
    code = "import sys, ckpt_orm.migrations; print('langchain_core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_all_that_is_public_is_there() -> None:
    for name in ckpt_orm.__all__:
        assert getattr(ckpt_orm, name).__doc__ or name == "__version__"
    assert set(ckpt_orm.__all__) <= set(dir(ckpt_orm))
    with pytest.raises(AttributeError, match="nothing_like_that"):
        _ = ckpt_orm.nothing_like_that


def test_the_top_level_alembic_folder_shadows_nothing() -> None:
    assert not (PACKAGE.parent / "alembic" / "__init__.py").exists()
