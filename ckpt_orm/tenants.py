"""SCOPED: a runner that works for one tenant, and refuses to work for none.

It stands in front of a saver's runner, whatever that one is, and tells each operation whom it is
for; the statements ask (see `scope`). On tables with a tenant a saver has one from the start, so
the rows of all tenants together are never within reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from langchain_core.runnables import RunnableConfig
from sqlalchemy import Column

from ckpt_orm.columns import coerced, given, rule_of
from ckpt_orm.errors import InvalidConfig, WrongTenant
from ckpt_orm.guests import Guest, GuestRunner
from ckpt_orm.lanes import Lane
from ckpt_orm.operations import Operation
from ckpt_orm.runners import Runner
from ckpt_orm.scope import work_for

P = ParamSpec("P")
R = TypeVar("R")


class TenantRunner:
    """Runs operations for a tenant; shared by copies of a saver, as the runner behind it is.

    Args:
        host: the runner behind it.
        column: the tenant's column in the first table.
        tenant: the tenant, None for a saver that is not scoped yet.
    """

    def __init__(self, host: Runner | GuestRunner, column: Column[Any], tenant: Any = None) -> None:
        self.host, self.column, self.tenant = host, column, tenant
        self.logs, self.statements = host.logs.of(tenant), host.statements
        rule = rule_of(column)
        self._key = (rule and rule.key) or column.key

    def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation as the runner behind does, for the tenant.

        Raises:
            WrongTenant: where there is none.
        """
        return self.host.run(self._scoped(operation), *args, **kwargs)

    async def arun(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`run` in the other colour."""
        return await self.host.arun(self._scoped(operation), *args, **kwargs)

    def admit(self, config: RunnableConfig) -> None:
        """Refuse a config of another tenant; one that names none is the tenant's.

        Raises:
            WrongTenant: for such a config, and where there is no tenant.
        """
        self._check()
        named = given(config, self._key)
        if named is not None and not self._is_own(named):
            raise WrongTenant(
                f"the config's {self._key!r} is another than the saver's: use a saver that is "
                f"scoped to it, or leave {self._key!r} out of the config"
            )

    def scoped(self, tenant: Mapping[str, Any]) -> TenantRunner:
        """The same for a tenant, named by its column.

        Raises:
            WrongTenant: for anything but the column, and on a runner of another tenant.
            InvalidConfig: for a value that the column cannot hold.
        """
        if list(tenant) != [self.column.key] or tenant[self.column.key] is None:
            raise WrongTenant(f"scoped() takes the tenant: saver.scoped({self.column.key}=…)")
        value = coerced(self.column, self.column.key, tenant[self.column.key])
        if self.tenant is not None and value != self.tenant:
            raise WrongTenant("this saver is another tenant's already: scope the one it came from")
        return TenantRunner(self.host, self.column, value)

    def using(self, guest: Guest) -> TenantRunner:
        """The same inside a transaction of the caller's."""
        return TenantRunner(_guest(self.host, guest), self.column, self.tenant)

    def setup(self) -> None:
        """As the runner behind does; of all tenants at once."""
        self.host.setup()

    async def asetup(self) -> None:
        """`setup` in the other colour."""
        await self.host.asetup()

    def dispose(self) -> None:
        """As the runner behind does."""
        self.host.dispose()

    async def adispose(self) -> None:
        """As the runner behind does."""
        await self.host.adispose()

    def __str__(self) -> str:
        scope = f", scoped to one {self.column.key}" if self.tenant is not None else ""
        return f"{self.host}{scope}"

    def _scoped(self, operation: Operation[P, R]) -> Operation[P, R]:
        self._check()

        @wraps(operation.function)
        def function(lane: Lane, *args: P.args, **kwargs: P.kwargs) -> R:
            return work_for(self.tenant, operation.function, lane, *args, **kwargs)

        wrapped: Any = function
        return replace(operation, function=wrapped)

    def _check(self) -> None:
        if self.tenant is None:
            raise WrongTenant(
                "the tables hold the rows of many tenants, and this saver is nobody's: use "
                f"saver.scoped({self.column.key}=…)"
            )

    def _is_own(self, named: Any) -> bool:
        try:
            return bool(coerced(self.column, self._key, named) == self.tenant)
        except InvalidConfig:
            return False


#: What runs a saver's operations.
AnyRunner = Runner | GuestRunner | TenantRunner


def inside(runner: AnyRunner, guest: Guest) -> AnyRunner:
    """A runner that works as this one does, inside a transaction of the caller's."""
    return runner.using(guest) if isinstance(runner, TenantRunner) else _guest(runner, guest)


def for_tenant(runner: AnyRunner, tenant: Mapping[str, Any]) -> TenantRunner:
    """A runner that works as this one does, for a tenant.

    Raises:
        WrongTenant: on tables without a tenant, and as `TenantRunner.scoped` does.
    """
    if isinstance(runner, TenantRunner):
        return runner.scoped(tenant)
    raise WrongTenant(
        "the tables have no column of a tenant, so there is nothing to scope to: map them with "
        "TenantMixin, or a column that is a tenant_column()"
    )


def _guest(runner: Runner | GuestRunner, guest: Guest) -> GuestRunner:
    return GuestRunner(runner.host if isinstance(runner, GuestRunner) else runner, guest)
