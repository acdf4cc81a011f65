"""An interrupt at a place that a test chooses."""

from __future__ import annotations

import sys
from collections.abc import Collection
from types import FrameType


class Interrupted:
    """Interrupts this thread at one of the places where Python looks for a signal.

    That is as a function begins, and as one of C returns.

    Args:
        place: which one, counted from 1.
        files: those whose code is interrupted.
    """

    def __init__(self, place: int, files: Collection[str]) -> None:
        self._left, self._files, self.happened = place, files, False

    def __enter__(self) -> None:
        sys.setprofile(self._look)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, kind: str, _: object) -> None:
        if frame.f_code.co_filename in self._files and kind in ("call", "c_return"):
            self._left -= 1
            if self._left == 0:
                self.happened = True
                raise KeyboardInterrupt
