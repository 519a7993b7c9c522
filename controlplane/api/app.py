"""The application: the reading half is open, the writing half is behind the guard.

`/openapi.json` describes all routes; there is no documentation page, because the usual ones load their
scripts from other people's servers.
"""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from controlplane import __version__
from controlplane.api import alerts, autoscaling_route, reading, shapes, writing
from controlplane.api.errors import ApiError, error_response, sentence
from controlplane.api.guard import Guard
from controlplane.api.page import routes as page
from controlplane.api.page.history import History
from controlplane.api.settings import ApiSettings
from controlplane.api.state import State
from controlplane.api.stream import Streams


def create_app(
    state: State, settings: ApiSettings, streams: Streams | None = None, history: History | None = None
) -> FastAPI:
    """The API of the daemon behind `state`, and its page; `streams` and `history` are given by whoever wants
    to end them."""
    board = alerts.Board()
    app = FastAPI(
        title="controlplane",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        responses={"default": {"model": shapes.Error, "description": "a sentence about what went wrong"}},
    )
    app.include_router(reading.routes(state, streams or Streams(state), settings.metrics))
    app.include_router(writing.routes(state))
    app.include_router(alerts.routes(state, board))
    app.include_router(autoscaling_route.routes(state))
    app.include_router(page.routes(state, board, history or History(state), settings, reading.INDEX))
    app.add_middleware(Guard, settings=settings)
    _add_errors(app)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def refused(_: Request, error: ApiError) -> Response:
        return error_response(error.status, error.code, error.message)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return error_response(422, "invalid", sentence(error))

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:200]
        if error.status_code == 400:
            return error_response(400, "invalid", f"{path}: the body is not JSON in UTF-8")
        if error.status_code == 404:
            return error_response(404, "not_found", f"there is no {path} here; / lists what there is")
        if error.status_code == 405:
            message = f"{request.method} {path} is not possible"
            return error_response(405, "method_not_allowed", message, error.headers)
        return error_response(error.status_code, "refused", f"{path}: {error.detail}", error.headers)

    @app.exception_handler(Exception)
    async def broken(request: Request, _: Exception) -> Response:
        return error_response(500, "internal", f"{request.url.path[:200]} failed; the log says why")
