"""WHOSE rows: the tenant that an operation works for, while it executes.

A statement of a layout with tenants has a parameter that asks here for its value. So the statement
is the same for all tenants, and cannot be executed for none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ckpt_orm.errors import WrongTenant

_TENANT: ContextVar[Any] = ContextVar("ckpt_orm_tenant")


@contextmanager
def within(tenant: Any) -> Iterator[None]:
    """Work for a tenant; only around synchronous code, which stays in one context."""
    token = _TENANT.set(tenant)
    try:
        yield
    finally:
        _TENANT.reset(token)


def current() -> Any:
    """The tenant that is worked for.

    Raises:
        WrongTenant: outside of `within`.
    """
    try:
        return _TENANT.get()
    except LookupError:
        raise WrongTenant(
            "a statement on the tables of tenants was executed for none: use saver.scoped(…)"
        ) from None
