"""pytest-alembic's four default tests, on both dialects."""

from __future__ import annotations

from typing import Any

import pytest
from migration_helpers import MakeEngine
from pytest_alembic.tests import (
    test_model_definitions_match_ddl,
    test_single_head_revision,
    test_up_down_consistency,
    test_upgrade,
)
from sqlalchemy import URL, Engine

__all__ = [
    "test_model_definitions_match_ddl",
    "test_single_head_revision",
    "test_up_down_consistency",
    "test_upgrade",
]


@pytest.fixture
def alembic_config() -> dict[str, Any]:
    return {"script_location": "ckpt_orm:migrations", "path_separator": "newline"}


@pytest.fixture
def alembic_engine(database_url: URL, make_engine: MakeEngine) -> Engine:
    return make_engine(database_url)
