"""How the commands tell numbers: one of a thing is one thing."""

from __future__ import annotations

import pytest

from ckpt_orm import Packed, Swept
from ckpt_orm.cli import upkeep
from ckpt_orm.words import counted


def test_one_of_a_thing() -> None:
    told = [counted(number, "thread") for number in (0, 1, 2, 2000)]
    assert told == ["0 threads", "1 thread", "2 threads", "2,000 threads"]


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (
            1,
            "deleted 1 checkpoint, 1 write and 1 blob of 1 thread, 1 of them whole: 1 byte of "
            "values\n1 thread was in use and is left to the next sweep\n",
        ),
        (
            2,
            "deleted 2 checkpoints, 2 writes and 2 blobs of 2 threads, 2 of them whole: 2 bytes of "
            "values\n2 threads were in use and are left to the next sweep\n",
        ),
    ],
)
def test_a_sweep(number: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    upkeep._print_swept(Swept(*[number] * 8), dry_run=False, as_json=False)
    assert capsys.readouterr().out == says


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (1, "packed 1 value of 1 thread\n1 was in use and is left to the next run\n"),
        (2, "packed 2 values of 2 threads\n2 were in use and are left to the next run\n"),
    ],
)
def test_packing(number: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    upkeep._print_packed("pack", Packed(number, number, number))
    assert capsys.readouterr().out == says
