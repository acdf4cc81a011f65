"""The three example applications as a pipeline runs them: what each does, step by step."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from sqlalchemy import URL

EXAMPLES = Path(__file__).parents[2] / "examples"

#: What brings each example's database up, back again, and prints it all as SQL.
UP = {
    "a_own_section": ["upgrade head", "-n ckpt_orm upgrade head"],
    "b_branch": ["upgrade heads"],
    "c_own_revision": ["upgrade head"],
}
DOWN = {
    "a_own_section": ["-n ckpt_orm downgrade base"],
    "b_branch": ["downgrade ckpt_orm@base"],
    "c_own_revision": ["downgrade app_0001"],
}
PREFIX = {"a_own_section": "", "b_branch": "agents_", "c_own_revision": ""}


#: Each argument is what follows `alembic` on a command line, or a file to run.
RUN = """
import runpy, sys
from alembic.config import main
for command in sys.argv[1:]:
    if command.endswith(".py"):
        sys.path.insert(0, ".")
        runpy.run_path(command)
    else:
        main(argv=command.split())
"""


class Host:
    """A copy of an example, run with one interpreter against one database."""

    def __init__(self, example: str, folder: Path, python: Path, url: URL) -> None:
        self.example = example
        self.prefix = PREFIX[example]
        self.folder = folder / example
        self.python = python
        shutil.copytree(EXAMPLES / example, self.folder)
        written = url.render_as_string(hide_password=False)
        self.environment = {"PATH": os.environ["PATH"], "DATABASE_URL": written}
        self.environment["CKPT_ORM_DATABASE_URL"] = written

    def run(self, *commands: str) -> str:
        """What these print one after the other, in one process: the start is what takes long."""
        done = subprocess.run(
            [self.python, "-W", "error", "-c", RUN, *commands],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def up(self, *more: str) -> None:
        self.run(*UP[self.example], *more)

    def down(self) -> None:
        self.run(*DOWN[self.example])

    def printed(self) -> str:
        return self.run(*(f"{command} --sql" for command in UP[self.example]))
