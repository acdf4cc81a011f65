"""From the repository's root, plain `alembic` works, and a new revision lands in the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import URL

from ckpt_orm.migrations import HEAD, REVISIONS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy, so that a new revision stays out of this one."""
    for name in ("alembic", "ckpt_orm"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "alembic.ini", tmp_path)
    return tmp_path


def alembic(repository: Path, url: URL, *commands: str) -> str:
    """What these print, one after the other in one process."""
    code = (
        "import sys; from alembic.config import main\n"
        "for command in sys.argv[1:]: main(argv=command.split())"
    )
    environment = {**os.environ, "CKPT_ORM_DATABASE_URL": url.render_as_string(hide_password=False)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *commands],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_command(repository: Path, database_url: URL) -> None:
    printed = alembic(
        repository,
        database_url,
        "history",
        "upgrade head",
        "check",
        "current",
        "downgrade -1",
        "current",
        "downgrade base",
        "upgrade head --sql",
        "upgrade head",
        "-n ckpt_orm current",
    )
    for revision in REVISIONS:
        assert revision in printed
    assert f"{REVISIONS[-2]}\n" in printed
    assert "No new upgrade operations detected" in printed
    assert "CREATE TABLE IF NOT EXISTS checkpoints" in printed
    assert printed.endswith(f"{HEAD} (head)\n")


def test_a_new_revision_lands_in_the_package(repository: Path, sqlite_url: URL) -> None:
    models = repository / "ckpt_orm" / "models.py"
    changed = '    type: Mapped[str | None] = mapped_column(Text, doc="Unused;'
    assert changed in models.read_text()
    models.write_text(
        models.read_text().replace(changed, f"    owner: Mapped[str | None]\n{changed}")
    )
    before = set(repository.rglob("*.py"))
    alembic(repository, sqlite_url, "upgrade head", "revision --autogenerate -m owners")
    (made,) = set(repository.rglob("*.py")) - before
    number = f"ckpt_orm_{len(REVISIONS) + 1:04}"
    assert made == repository / "ckpt_orm" / "migrations" / "versions" / f"{number}_owners.py"
    text = made.read_text()
    assert f"down_revision = {HEAD!r}" in text
    assert "op.add_column('checkpoints', sa.Column('owner'" in text
    assert "record(revision)" in text
    compile(text, str(made), "exec")
    alembic(repository, sqlite_url, "upgrade head", "check", "downgrade base")
