"""The `ckpt-orm` command. Its two libraries are an extra: without them it says how to get them."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command with the arguments of the process."""
    try:
        from ckpt_orm.cli.commands import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"ckpt-orm: {error.name} is not installed: pip install 'ckpt-orm[cli]'")
    app(prog_name="ckpt-orm")
