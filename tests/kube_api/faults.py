"""What a test lets go wrong: matched by verb and resource, for a number of requests or until it is ended."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Fault:
    """What happens to matching requests. None matches anything.

    `status` answers without carrying the request out. `delay` seconds come first. `lose` "request" drops the
    connection before the request is carried out, "answer" after it has been. `hang` never answers.
    `meddle` is called just before the request is carried out: somebody else is faster.
    """

    verb: str | None = None
    resource: str | None = None
    name: str | None = None
    times: int | None = None
    status: int | None = None
    retry_after: int | None = None
    delay: float = 0.0
    lose: str | None = None
    hang: bool = False
    meddle: Callable[[], object] | None = None
    met: int = 0
    """How many requests have met it."""

    def end(self) -> None:
        self.times = 0

    def takes(self, verb: str, resource: str, name: str) -> bool:
        """Whether it happens to this request; counts it."""
        if self.times is not None and self.times <= 0:
            return False
        wanted = ((self.verb, verb), (self.resource, resource), (self.name, name))
        if any(given is not None and given != got for given, got in wanted):
            return False
        if self.times is not None:
            self.times -= 1
        self.met += 1
        return True


REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
