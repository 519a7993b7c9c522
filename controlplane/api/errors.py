"""Every answer that is not what was asked for: `{"error": {"code", "message"}}`."""

from collections.abc import Mapping

from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from controlplane.api.shapes import Error, ErrorDetail

_SHOWN_CHARS = 100


class ApiError(Exception):
    """An answer with HTTP status `status`; `code` is for programs, `message` a sentence for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def error_response(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    body = Error(error=ErrorDetail(code=code, message=message)).model_dump_json()
    return Response(body, status, dict(headers or {}), media_type="application/json")


def sentence(error: RequestValidationError) -> str:
    """What is wrong with a request: each thing by its place and with the value that was sent."""
    found = []
    for problem in error.errors():
        if problem["type"] == "json_invalid":
            why = problem.get("ctx", {}).get("error", "it cannot be read")
            found.append(f"the body is not JSON: {why} (character {problem['loc'][-1]})")
            continue
        place = ".".join(str(part) for part in problem["loc"]) or "request"
        value = problem.get("input")
        got = "" if problem["type"] == "missing" else f" (got {repr(value)[:_SHOWN_CHARS]})"
        found.append(f"{place}: {problem['msg'].removeprefix('Value error, ')}{got}")
    return "; ".join(found)
