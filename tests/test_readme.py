"""What the documents show is what runs: each Python block of them, in an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path in DOCUMENTS
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL), 1
    )
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs(block: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_two_commands_stand_on_the_first_screen() -> None:
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:25])
    assert "ckpt-orm demo" in first
    assert "pip install -e '.[dev]' && python -m pytest" in first
