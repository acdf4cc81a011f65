"""What the documents show is what runs: each `python` block of them, in an empty folder.

A `py` block is a piece of a file that cannot run by itself: it must be Python, and what it imports
must be there.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[Any]:
    """The blocks of a language in all documents."""
    fenced = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [
        pytest.param(block, id=f"{path.name}-{number}")
        for path in DOCUMENTS
        for number, block in enumerate(fenced.findall(path.read_text()), 1)
    ]


@pytest.mark.parametrize("block", blocks("python"))
def test_a_block_runs(block: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", blocks("py"))
def test_a_piece_is_python_and_imports_what_is_there(block: str) -> None:
    tree = compile(block, "piece", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    exec(compile(ast.Module(imports, []), "piece", "exec"), {})


def test_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_two_commands_stand_on_the_first_screen() -> None:
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:25])
    assert "ckpt-orm demo" in first
    assert "pip install -e '.[dev]' && python -m pytest" in first
