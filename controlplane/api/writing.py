"""The writing half: holds and overrides of people. The guard has checked the token before any of this."""

from collections.abc import Awaitable
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Depends, Query
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field

from controlplane.api import answers, shapes
from controlplane.api.errors import ApiError
from controlplane.api.state import State
from controlplane.api.words import Name, Words
from controlplane.signals.decision import Hold, Override

T = TypeVar("T")
Scope = Literal["pool", "replica", "node"]
By = Annotated[Name, Query(description="who orders it")]


class HoldOrder(BaseModel):
    """Freeze every actuator."""

    model_config = ConfigDict(extra="forbid")

    reason: Words
    by: Name


class OverrideOrder(BaseModel):
    """A person's word on one thing; it wins over every law until it is taken back or `until`."""

    model_config = ConfigDict(extra="forbid")

    scope: Scope
    name: Name
    setting: Name
    value: Name
    reason: Words
    by: Name
    until: Annotated[float, Field(allow_inf_nan=False)] | None = Field(None, description="Unix seconds")


def routes(state: State) -> APIRouter:
    router = APIRouter(
        prefix="/api/v1",
        tags=["orders"],
        dependencies=[Depends(HTTPBearer(auto_error=False))],  # for OpenAPI: what the guard asks for
    )

    @router.post("/hold")
    async def hold(order: HoldOrder) -> shapes.Orders:
        """Freeze every actuator until the hold is ended."""
        await _kept(state.hold(Hold(state.now(), order.by, order.reason)))
        return answers.orders_of(state.orders())

    @router.delete("/hold")
    async def release(by: By) -> shapes.Orders:
        """End the hold; nothing happens where there is none."""
        await _kept(state.release(by))
        return answers.orders_of(state.orders())

    @router.put("/overrides")
    async def override(order: OverrideOrder) -> shapes.Orders:
        """Set one override, in place of one of the same scope, name and setting."""
        _find(state, order.scope, order.name)
        await _kept(state.override(Override(**order.model_dump(), since=state.now())))
        return answers.orders_of(state.orders())

    @router.delete("/overrides")
    async def clear_override(
        scope: Scope, name: Annotated[Name, Query()], setting: Annotated[Name, Query()], by: By
    ) -> shapes.Orders:
        """Take one override back."""
        if not await _kept(state.clear_override(scope, name, setting, by)):
            raise ApiError(404, "no_such_override", f"nothing overrides {setting} of {scope} {name}")
        return answers.orders_of(state.orders())

    return router


def _find(state: State, scope: Scope, name: str) -> None:
    """Raises ApiError where there is nothing of that name: an order with a slip of the pen binds nothing."""
    snapshot = state.snapshot()
    if snapshot is None:
        raise ApiError(503, "not_ready", "the first tick has not run yet")
    # A configured pool has an objective also while it is empty.
    there = {
        "pool": {*snapshot.pools, *state.status().objectives},
        "replica": snapshot.replicas,
        "node": snapshot.nodes,
    }
    if name not in there[scope]:
        raise ApiError(404, f"no_such_{scope}", f"there is no {scope} {name!r}: nothing was overridden")


async def _kept(order: Awaitable[T]) -> T:
    """What `order` returns, once it is kept; an order that means nothing or cannot be kept is refused."""
    try:
        return await order
    except ValueError as error:
        raise ApiError(422, "invalid", str(error)) from None
    except OSError as error:
        raise ApiError(
            503, "not_kept", f"the order cannot be written and does not stand: {error.strerror or error}"
        ) from None
