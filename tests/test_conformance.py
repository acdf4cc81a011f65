"""LangGraph's conformance suite: all of it, on each database, for both kinds of engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from backends import BACKENDS, Backend, engine_of, named
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from sqlalchemy import URL

from ckpt_orm import SQLAlchemySaver

#: Tests of each capability in the suite's release 0.0.2.
TESTS = 81


@named([backend for backend in BACKENDS if backend.is_async])
def test_every_capability_and_every_test(backend: Backend, ready_url: URL) -> None:
    @checkpointer_test(name=f"SQLAlchemySaver on {backend.name}")
    async def savers() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
        yield saver

    loop = asyncio.new_event_loop()
    try:
        with engine_of(backend, ready_url, loop) as engine:
            saver = SQLAlchemySaver(engine)
            report = loop.run_until_complete(validate(savers))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    failures = [failure for result in report.results.values() for failure in result.failures]
    assert failures == []
    assert all(result.detected and result.passed for result in report.results.values())
    assert set(report.results) == {capability.value for capability in Capability}
    assert len(report.results) == 8
    assert sum(result.tests_passed for result in report.results.values()) == TESTS
    assert sum(result.tests_skipped for result in report.results.values()) == 0
