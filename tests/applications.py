"""An application whose own base holds the checkpoint tables, with columns of its own on them."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import URL, DateTime, ForeignKey, MetaData, String, create_engine, func, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from ckpt_orm import (
    CheckpointBlobMixin,
    CheckpointMixin,
    CheckpointSegmentMixin,
    CheckpointWriteMixin,
    Models,
    from_config,
)

CONVENTION = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Plan(enum.Enum):
    FREE = "free"
    PAID = "paid"


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=CONVENTION)


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    conversations: Mapped[list[Conversation]] = relationship(back_populates="user")


class Conversation(Base):
    __tablename__ = "conversations"
    id: Mapped[str] = mapped_column(String(50), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    user: Mapped[User] = relationship(back_populates="conversations")
    checkpoints: Mapped[list[AgentCheckpoint]] = relationship(
        primaryjoin="foreign(AgentCheckpoint.thread_id) == Conversation.id",
        order_by="AgentCheckpoint.checkpoint_id",
        viewonly=True,
    )


class AgentCheckpoint(CheckpointMixin, Base):
    __tablename__ = "agent_states"
    user_id: Mapped[int | None] = from_config("user_id", ForeignKey("users.id"), index=True)
    org: Mapped[UUID | None] = from_config("org")
    plan: Mapped[Plan | None] = from_config("plan")
    since: Mapped[datetime | None] = from_config("since", DateTime(timezone=True))
    trial: Mapped[bool | None] = from_config("trial")
    region: Mapped[str] = from_config("region", String(8), server_default=text("'eu'"))
    origin: Mapped[str] = from_config("origin", String(8), default="web")
    stored_at: Mapped[datetime] = mapped_column(server_default=func.now())
    note: Mapped[str | None]
    channel_kind: Mapped[str] = mapped_column(default="chat")
    user: Mapped[User | None] = relationship()


class AgentBlob(CheckpointBlobMixin, Base):
    __tablename__ = "agent_values"
    org: Mapped[UUID | None] = from_config("org", index=True)


class AgentWrite(CheckpointWriteMixin, Base):
    __tablename__ = "agent_writes"
    user_id: Mapped[int | None] = from_config("user_id")


class AgentSegment(CheckpointSegmentMixin, Base):
    __tablename__ = "agent_segments"
    org: Mapped[UUID | None] = from_config("org")


MODELS = Models(AgentCheckpoint, AgentBlob, AgentWrite, AgentSegment)


def create(url: URL, metadata: MetaData, *statements: Any) -> None:
    """The tables of an application, as its own test would make them."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(statement)
        metadata.create_all(connection)
    engine.dispose()
