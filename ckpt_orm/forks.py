"""FORKS: what a child process begins anew: it has none of its parent's threads to wait for."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Renewed(Protocol):
    """What has a lock, or a thread, or anybody in it."""

    def renew(self) -> None:
        """Begin with nobody in it."""


_RENEWED: WeakSet[Renewed] = WeakSet()


def after_fork(of: Renewed) -> None:
    """Have something renewed in a child process."""
    _RENEWED.add(of)


def _renew() -> None:
    for each in list(_RENEWED):
        each.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
