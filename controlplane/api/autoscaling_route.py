"""What an autoscaler fetches by HTTP: KEDA's metrics-api trigger, with `value` for its valueLocation."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from controlplane.api import autoscaling, shapes
from controlplane.api.errors import ApiError, error_response
from controlplane.api.guard import AUTOSCALING_PATH
from controlplane.api.state import State


def routes(state: State) -> APIRouter:
    router = APIRouter()

    @router.get(f"{AUTOSCALING_PATH}{{name:path}}", tags=["autoscaling"], response_model=shapes.Autoscaling)
    async def pool(
        name: str,
        tolerance: Annotated[
            str, Query(description="of the autoscaler's HPA, as a share", max_length=10)
        ] = "0.1",
    ) -> Any:
        """How many replicas a pool should have, for an HPA with target 1. Needs a token."""
        try:
            told = autoscaling.advice(state, name, autoscaling.tolerance_of(tolerance))
        except ValueError as error:
            raise ApiError(422, "invalid", str(error)) from None
        except autoscaling.CannotSayError as error:
            if error.unknown_pool:
                raise ApiError(404, "no_such_pool", str(error)) from None
            # The next request should come by another connection: behind the Service it may find the leader.
            return error_response(503, "cannot_say", str(error), {"connection": "close"})
        return shapes.Autoscaling(
            pool=name,
            active=told.active,
            value=told.value,
            desired=told.desired,
            current=told.current,
            why=told.why,
        )

    return router
