"""Engines that are closed again, as fixtures."""

from migration_helpers import engine, make_engine

__all__ = ["engine", "make_engine"]
