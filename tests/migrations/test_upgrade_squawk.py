"""The SQL of each revision is linted for what hurts on a large table that is in use."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_upgrade_chain import STEPS
from test_upgrade_offline import script

from ckpt_orm.migrations import REVISIONS
from ckpt_orm.migrations.place import Place

#: The rules that are not asked for, each with the reason.
EXCLUDED = {
    "prefer-text-field": "the column is Alembic's own, in its version table, and never altered",
    "prefer-bigint-over-int": "`idx` counts the writes of one task; the official saver has INTEGER",
    "ban-drop-not-null": "the official saver's own migration 4, for databases that are older",
    "require-statement-timeout": "a rewrite may take its time; what must not wait is the lock",
}


def squawk(path: Path, sql: str) -> str:
    """What the linter has against it, "" for nothing."""
    path.write_text(sql)
    excluded = [f"--exclude={rule}" for rule in EXCLUDED]
    done = subprocess.run(
        [Path(sys.executable).parent / "squawk", "--pg-version=14", *excluded, path],
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr if done.returncode else ""


@pytest.mark.parametrize("revision", REVISIONS)
def test_squawk(revision: str, tmp_path: Path) -> None:
    before = STEPS[STEPS.index(revision) - 1]
    sql = laid_open(script(Place(), f"{before}:{revision}"))
    assert squawk(tmp_path / f"{revision}.sql", sql) == ""


def test_squawk_is_awake(tmp_path: Path) -> None:
    index = "CREATE INDEX by_type ON checkpoints (type);"
    assert "require-concurrent-index-creation" in squawk(tmp_path / "bad.sql", index)


def laid_open(sql: str) -> str:
    """Add the statements that are text inside a DO block, which the linter does not look into."""
    hidden = re.findall(r"EXECUTE \$sql\$(.*?)\$sql\$", sql)
    return sql.replace("COMMIT;", "".join(f"{statement};\n" for statement in hidden) + "COMMIT;")
