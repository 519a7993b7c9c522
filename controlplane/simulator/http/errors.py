"""Refusals in vLLM's words and shapes."""

import msgspec

NOT_FOUND = "NotFoundError"
BAD_REQUEST = "BadRequestError"
INVALID = "Bad Request"
"""The type that vLLM gives a body which does not fit its schema."""


class ApiError(Exception):
    """A request that is answered with an error. `param` is the field to blame, if there is one."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = msgspec.json.encode(
            {"error": {"message": message, "type": kind, "param": param, "code": status}}
        )


def bad_request(message: str, param: str | None = None, value: object = msgspec.UNSET) -> ApiError:
    """400 for a value that vLLM's own checks refuse; it repeats the name of the field, and the value."""
    if param is not None:
        message += (
            f" (parameter={param})" if value is msgspec.UNSET else f" (parameter={param}, value={value})"
        )
    return ApiError(400, BAD_REQUEST, message, param)


def invalid(where: str, message: str) -> ApiError:
    """400 for a body that does not fit the schema, at `where`."""
    return ApiError(400, INVALID, f"1 validation error:\n  {{'loc': {where!r}, 'msg': {message!r}}}", where)


def no_such_model(asked: str, served: str) -> ApiError:
    """404 for another model's name."""
    message = f"The model `{asked[:200]}` does not exist. Valid aliases: {served}."
    return ApiError(404, NOT_FOUND, message, "model")
