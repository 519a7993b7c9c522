"""What the server refuses, as the Status object that it answers with."""

from typing import Any


class ApiError(Exception):
    """A request that is not carried out: HTTP status `code`, machine-readable `reason`, a sentence."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details = dict(details or {})
        self.retry_after = retry_after
        if retry_after is not None:
            self.details["retryAfterSeconds"] = retry_after

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            body["details"] = self.details
        return body


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def not_found(plural: str, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{plural} "{name}" not found', details={"name": name, "kind": plural})


def conflict(plural: str, name: str, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {plural} "{name}": {why}'
    return ApiError(409, "Conflict", message, details={"name": name, "kind": plural})


def invalid(kind: str, name: str, field: str, why: str) -> ApiError:
    causes = [{"reason": "FieldValueInvalid", "message": why, "field": field}]
    message = f'{kind} "{name}" is invalid: {field}: {why}'
    return ApiError(422, "Invalid", message, details={"name": name, "kind": kind, "causes": causes})


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)
