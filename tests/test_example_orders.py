"""The shop of examples/orders, over HTTP: an order and the agent's state share one fate."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import URL

SHOP = Path(__file__).parent.parent / "examples" / "orders"
ASYNC_DRIVERS = {
    "sqlite": ["sqlite+aiosqlite"],
    "postgresql": ["postgresql+psycopg_async", "postgresql+asyncpg"],
}
PIPELINE = """
from alembic.config import main
main(argv=["upgrade", "head"])
main(argv=["check"])
"""
Visit = Callable[[httpx.AsyncClient], Awaitable[None]]


@pytest.fixture(
    params=[(name, driver) for name, drivers in ASYNC_DRIVERS.items() for driver in drivers],
    ids=lambda found: found[1],
)
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """A database that the shop's own pipeline has upgraded, named for both colours."""
    name, driver = request.param
    fixture = "sqlite_url" if name == "sqlite" else "postgres_url"
    url: URL = request.getfixturevalue(fixture)
    found = {
        "DATABASE_URL": url.render_as_string(hide_password=False),
        "ASYNC_DATABASE_URL": url.set(drivername=driver).render_as_string(hide_password=False),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PIPELINE],
        cwd=SHOP,
        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **found},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return found


@pytest.fixture
def visited(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Visit], None]:
    """Runs a visit to the shop, from its start to its end."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(SHOP)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("app", "agent", "models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import app as shop  # type: ignore[import-not-found]

    for name in ("app", "agent", "models"):
        monkeypatch.delitem(sys.modules, name)

    async def run(visit: Visit) -> None:
        async with opened(shop.create()) as client:
            await visit(client)

    return lambda visit: asyncio.run(run(visit))


@asynccontextmanager
async def opened(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        yield client


async def order(client: httpx.AsyncClient, at: str, item: str, quantity: int) -> httpx.Response:
    return await client.post(at, json={"item": item, "quantity": quantity})


def test_an_order_and_the_agents_state(visited: Callable[[Visit], None]) -> None:
    async def visit(client: httpx.AsyncClient) -> None:
        await share_one_fate(client, "/orders", "ann", "bob")
        await share_one_fate(client, "/async/orders", "cem", "dan")
        assert (await client.get("/threads")).json() == ["ann", "cem"]
        assert (await client.get("/threads", params={"after": "ann"})).json() == ["cem"]
        await come_at_once(client)

    visited(visit)


async def share_one_fate(client: httpx.AsyncClient, route: str, name: str, other: str) -> None:
    placed = await order(client, f"{route}/{name}", "tea", 2)
    assert (placed.status_code, placed.json()) == (200, {"log": ["2 tea"]})
    # The agent refuses, when the order is in the session already.
    refused = await order(client, f"{route}/{name}", "cake", 4)
    assert (refused.status_code, refused.json()) == (409, {"refused": "OutOfStock"})
    # The database refuses the order, when the agent has stored its state already.
    refused = await order(client, f"{route}/{name}", "tea", -1)
    assert (refused.status_code, refused.json()) == (409, {"refused": "IntegrityError"})
    refused = await order(client, f"{route}/{other}", "tea", 0)
    assert refused.status_code == 409
    placed = await order(client, f"{route}/{name}", "cake", 3)
    assert placed.json() == {"log": ["2 tea", "3 cake"]}
    both = {"orders": ["2 tea", "3 cake"], "log": ["2 tea", "3 cake"]}
    assert (await client.get(f"/orders/{name}")).json() == both
    assert (await client.get(f"/orders/{other}")).json() == {"orders": [], "log": []}


async def come_at_once(client: httpx.AsyncClient) -> None:
    names = [f"{route}/customer{n}" for n in range(4) for route in ("/orders", "/async/orders")]
    placed = await asyncio.gather(*(order(client, name, "tea", 1) for name in names))
    assert [found.status_code for found in placed] == [200] * 8
    for n in range(4):
        found = (await client.get(f"/orders/customer{n}")).json()
        assert found["orders"] == ["1 tea", "1 tea"]
