"""The application's own tables; the checkpoints' are not among them."""

from sqlalchemy import CheckConstraint, MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={"pk": "pk_%(table_name)s", "ck": "ck_%(table_name)s_%(constraint_name)s"}
    )


class Order(Base):
    __tablename__ = "orders"
    __table_args__ = (CheckConstraint("quantity > 0", name="some"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    thread_id: Mapped[str] = mapped_column(doc="The conversation it came from.")
    item: Mapped[str]
    quantity: Mapped[int]
