"""A shop over HTTP: an order's row and the agent's state are stored together, or neither is.

    DATABASE_URL=postgresql+psycopg://… ASYNC_DATABASE_URL=postgresql+asyncpg://… \\
        uvicorn --factory app:create
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agent import OutOfStock, agent
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from models import Order
from pydantic import BaseModel
from sqlalchemy import create_engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from ckpt_orm import SQLAlchemySaver, tune


class Wish(BaseModel):
    item: str
    quantity: int


def create() -> FastAPI:
    engine = create_engine(os.environ["DATABASE_URL"])
    async_engine = create_async_engine(os.environ["ASYNC_DATABASE_URL"])
    tune(engine)  # a SQLite file: writers wait for each other; Postgres is left as it is
    tune(async_engine)
    sessions = sessionmaker(engine)
    async_sessions = async_sessionmaker(async_engine)
    saver = SQLAlchemySaver(sessions, async_sessions)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        engine.dispose()
        await async_engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders/{thread_id}")
    def order(thread_id: str, wish: Wish) -> dict[str, Any]:
        with sessions.begin() as session:
            session.add(Order(thread_id=thread_id, **wish.model_dump()))
            graph = agent.compile(checkpointer=saver.using(session))
            state = graph.invoke(wish.model_dump(), thread(thread_id), durability="exit")
        return {"log": state["log"]}

    @app.post("/async/orders/{thread_id}")
    async def async_order(thread_id: str, wish: Wish) -> dict[str, Any]:
        async with async_sessions.begin() as session:
            session.add(Order(thread_id=thread_id, **wish.model_dump()))
            graph = agent.compile(checkpointer=saver.using(session))
            state = await graph.ainvoke(wish.model_dump(), thread(thread_id), durability="exit")
        return {"log": state["log"]}

    @app.get("/orders/{thread_id}")
    def orders(thread_id: str) -> dict[str, Any]:
        with sessions() as session:
            found = session.scalars(select(Order).where(Order.thread_id == thread_id)).all()
            rows = [f"{order.quantity} {order.item}" for order in found]
        state = agent.compile(checkpointer=saver).get_state(thread(thread_id))
        return {"orders": rows, "log": state.values.get("log", [])}

    @app.get("/threads")
    async def threads(after: str | None = None) -> list[str]:
        return [found.thread_id async for found in saver.athreads(after=after, limit=20)]

    @app.exception_handler(OutOfStock)
    @app.exception_handler(IntegrityError)
    async def refused(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"refused": type(error).__name__}, status_code=409)

    return app


def thread(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}
