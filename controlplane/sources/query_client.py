"""One query of the Prometheus query API: asked once, of one host, for a bounded time and a bounded size.

The package `prometheus-api-client` builds the request and knows the API's addresses. Its defaults are not
ours: no timeout, three retries under the caller's feet, redirects followed, `.netrc` and proxy variables
obeyed, bodies of any size, and of an answer only the result, or an exception with the whole body in its
text. All of that is settled in the session and the adapter that it is given here.

Synchronous, for a worker thread.
"""

import errno
import os
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from controlplane import __version__
from controlplane.signals.reading import Reason, Unknown
from controlplane.sources.prometheus_settings import PrometheusSettings
from controlplane.sources.query_answer import Answer, Retry, interpret
from controlplane.sources.secrets import Credentials, SecretError
from controlplane.sources.tls import TlsContexts, TlsError

LIMIT_BYTES: Final = 64 * 1024 * 1024
"""Largest answer that is read, after decompression: one histogram of some 10,000 engines."""

_CHUNK_BYTES: Final = 64 * 1024
_LEAST_SECONDS: Final = 0.005


class QueryClient:
    """Asks one server. `clock` gives Unix seconds, `monotonic` measures the time that an answer takes."""

    def __init__(
        self,
        settings: PrometheusSettings,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._monotonic = monotonic
        self._tls = TlsContexts()
        self._context: ssl.SSLContext | None = None
        self._session = _Session(clock, monotonic, limit_bytes)
        self._session.verify = not settings.tls.insecure_skip_verify
        auth = None if settings.auth is None else _Authorization(settings.auth)
        self._connect = PrometheusConnect(settings.url, session=self._session, auth=auth)
        self._session.mount(settings.url, _Adapter(None, None))  # in place of the package's, which retries

    def query(self, promql: str, deadline: float, at: float | None = None) -> Answer:
        """Evaluate `promql` at Unix time `at` (the server's clock; None: its now). Never raises.

        The answer has until `deadline` on the monotonic clock.
        """
        timeout_seconds = deadline - self._monotonic()
        if timeout_seconds < _LEAST_SECONDS:
            return self._failed(Reason.UNAVAILABLE, "the queries of a round take longer than its timeout")
        limit = f"{timeout_seconds:.3f}"
        params = {"timeout": limit} if at is None else {"timeout": limit, "time": f"{at:.3f}"}
        try:
            self._renew_tls()
            answer: Answer = self._connect.custom_query(promql, params, timeout_seconds)
        except (SecretError, TlsError) as error:
            return self._failed(Reason.CONFIGURATION_ERROR, str(error))
        except _TooLargeError as error:
            return self._failed(Reason.UNAVAILABLE, str(error))
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            return self._failed(Reason.UNAVAILABLE, _cause(error, timeout_seconds))
        return answer

    def close(self) -> None:
        self._session.close()

    def _renew_tls(self) -> None:
        if self._settings.url.startswith("https:"):
            context = self._tls.get(self._settings.tls, with_identity=True)
            if context is not self._context:
                self._context = context
                self._session.mount(self._settings.url, _Adapter(context, self._settings.tls.server_name))

    def _failed(self, reason: Reason, detail: str) -> Answer:
        now = self._clock()
        return Answer(now, failure=Unknown(reason, now, detail), retry=Retry.BACKOFF)


class _Authorization(AuthBase):
    """Shows our credentials, read anew for each request so that a renewed token is taken up."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = self._credentials.authorization()
        return request


class _Adapter(HTTPAdapter):
    """Connects without retries; whom to trust is for the TLS context alone to say."""

    def __init__(self, context: ssl.SSLContext | None, server_name: str | None) -> None:
        self._tls: dict[str, Any] = {}
        if context is not None:
            self._tls = {"ssl_context": context, "server_hostname": server_name}
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **(kwargs | self._tls))

    def cert_verify(self, *_: Any) -> None:
        """Leave the context as it is: `requests` would add its own bundle of authorities."""


class _TooLargeError(ValueError):
    """The answer is larger than allowed; the message says so."""


class _Session(requests.Session):
    """Sends one request to one host and reads the answer within bounds."""

    def __init__(self, clock: Callable[[], float], monotonic: Callable[[], float], limit_bytes: int) -> None:
        super().__init__()
        self.trust_env = False
        self.headers["User-Agent"] = f"controlplane/{__version__}"
        self._clock = clock
        self._monotonic = monotonic
        self._limit_bytes = limit_bytes

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Nowhere: a query API has no reason to redirect, and credentials are for one host."""

    def request(self, method: str | bytes, url: str | bytes, **kwargs: Any) -> requests.Response:  # type: ignore[override]
        """What the package calls. The timeout, in seconds, is for the whole of the answer."""
        deadline = self._monotonic() + kwargs["timeout"]
        with super().request(method, url, stream=True, allow_redirects=False, **kwargs) as response:
            body = b"".join(self._chunks(response, deadline))
        content_type = response.headers.get("Content-Type")
        return _Interpreted(interpret(response.status_code, content_type, body, self._clock()))

    def _chunks(self, response: requests.Response, deadline: float) -> Iterator[bytes]:
        size = 0
        # read1 comes back after each piece that the network brings, so a dripping server meets the deadline.
        while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=True):
            size += len(chunk)
            if size > self._limit_bytes:
                raise _TooLargeError(f"the answer is over {self._limit_bytes} bytes")
            if self._monotonic() > deadline:
                raise requests.Timeout
            yield chunk


class _Interpreted(requests.Response):
    """Carries an interpreted answer through the package, which takes `data.result` of a JSON body."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.status_code = 200
        self._answer = answer

    def json(self, **_: Any) -> Any:
        return {"data": {"result": self._answer}}


def _cause(error: BaseException, timeout_seconds: float) -> str:
    """What went wrong, in a few words; the text of the exception would hold the whole address."""
    if isinstance(error, requests.Timeout | urllib3.exceptions.TimeoutError):
        return f"no whole answer within {timeout_seconds:.1f} s"
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not accepted: {error.verify_message}"
        case ssl.SSLError():
            return f"no TLS: {error.reason}"
        case OSError(errno=int(number)) if number in errno.errorcode:
            return f"cannot connect: {os.strerror(number)}"
        case OSError(strerror=str(text)):
            return f"cannot connect: {text}"
        case _:
            return f"the answer was cut ({type(error).__name__})"
