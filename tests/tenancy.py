"""An application with tenants: their rows in one set of tables, told apart by a column."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from applications import CONVENTION
from sqlalchemy import URL, Engine, ForeignKey, MetaData, create_engine, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from ckpt_orm import SQLAlchemySaver, TenantMixin, declare, from_config, tenant_column


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=CONVENTION)


class Owned:
    user_id: Mapped[str | None] = from_config("user_id", index=True)


MODELS = declare(Base, prefix="agent_", extra=Owned, every=TenantMixin)


class OtherBase(DeclarativeBase):
    metadata = MetaData(naming_convention=CONVENTION)


class Org(OtherBase):
    __tablename__ = "orgs"
    id: Mapped[UUID] = mapped_column(primary_key=True)


class OfOrg:
    org_id: Mapped[UUID] = tenant_column(ForeignKey("orgs.id"), key="org")


BY_ORG = declare(OtherBase, prefix="bot_", every=OfOrg)


def dump(engine: Engine, tenant: Any, models: Any = MODELS) -> list[Any]:
    """All rows of a tenant, in all columns but when they were stored."""
    found = []
    with engine.connect() as connection:
        for table in models.tables:
            lead, *key = table.primary_key
            columns = [c for c in table.columns if c.name != "created_at"]
            query = select(*columns).where(lead == tenant).order_by(*key)
            found.append([tuple(row) for row in connection.execute(query)])
    return found


def tables(url: URL) -> None:
    """The tables of both."""
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    OtherBase.metadata.create_all(engine)
    engine.dispose()


def orgs(engine: Engine, *ids: UUID) -> None:
    with engine.begin() as connection:
        connection.execute(insert(Org), [{"id": id} for id in ids])


def scoped(engine: Any, tenant: str = "acme") -> SQLAlchemySaver:
    return SQLAlchemySaver(engine, models=MODELS).scoped(tenant_id=tenant)
