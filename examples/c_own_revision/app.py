"""The application: an agent's state and the order it led to, in one database."""

import os

from langgraph.checkpoint.base import empty_checkpoint
from models import Order
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from ckpt_orm import SQLAlchemySaver

engine = create_engine(os.environ["DATABASE_URL"])
saver = SQLAlchemySaver(engine)
config = {"configurable": {"thread_id": "conversation", "checkpoint_ns": ""}}
config = saver.put(config, empty_checkpoint(), {"source": "input", "step": -1}, {})
with Session(engine) as session, session.begin():
    session.add(Order(thread_id="conversation"))
print(saver.get_tuple(config).checkpoint["id"])
engine.dispose()
