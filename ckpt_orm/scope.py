"""WHOSE rows: the tenant that an operation works for, while it executes.

A statement of a layout with tenants has a parameter that asks here for its value. So the statement
is the same for all tenants, and cannot be executed for none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

from ckpt_orm.errors import WrongTenant

P = ParamSpec("P")
R = TypeVar("R")

_TENANT: ContextVar[Any] = ContextVar("ckpt_orm_tenant")


def work_for(tenant: Any, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function for a tenant, in a context of its own.

    The caller's may be shared by tasks of other tenants, of which one goes on while this one waits
    for its database.
    """
    context = copy_context()
    context.run(_TENANT.set, tenant)
    return context.run(function, *args, **kwargs)


def current() -> Any:
    """The tenant that is worked for.

    Raises:
        WrongTenant: outside of `work_for`.
    """
    try:
        return _TENANT.get()
    except LookupError:
        raise WrongTenant(
            "a statement on the tables of tenants was executed for none: use saver.scoped(…)"
        ) from None
