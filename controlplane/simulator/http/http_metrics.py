"""What a vLLM server counts of HTTP requests, beside what its engine counts.

A request counts when its answer has ended. A client that hung up counts as answered with 2xx, as in vLLM.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from controlplane.simulator.counters import HTTP_FINE_SECONDS, HTTP_SECONDS

NOT_COUNTED = {
    *("/metrics", "/health", "/ping", "/version", "/load"),
    *("/sim", "/sim/faults", "/dcgm/metrics"),  # which a real one has not
}
UNKNOWN = "none"
"""The handler of requests that nothing handles."""


class HttpMetrics:
    """Since the server started."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "http_requests",
            "Requests by method, status and handler.",
            ("handler", "method", "status"),
            registry=self._registry,
        )
        self._fine = Histogram(
            "http_request_duration_highr_seconds",
            "Latency in many buckets.",
            buckets=HTTP_FINE_SECONDS,
            registry=self._registry,
        )
        self._coarse = Histogram(
            "http_request_duration_seconds",
            "Latency in few buckets by handler.",
            ("handler", "method"),
            buckets=HTTP_SECONDS,
            registry=self._registry,
        )

    def count(self, handler: str, method: str, status: int, seconds: float) -> None:
        """A request has ended."""
        self._requests.labels(handler, method, f"{status // 100}xx").inc()
        self._fine.observe(seconds)
        self._coarse.labels(handler, method).observe(seconds)

    def page(self) -> bytes:
        """The families, as they are printed."""
        return generate_latest(self._registry)


def without_http(page: bytes) -> bytes:
    """The engine's page without what it says of HTTP requests: behind a real server it cannot know them."""
    lines = page.splitlines(keepends=True)
    return b"".join(
        line
        for line in lines
        if not line.removeprefix(b"# HELP ").removeprefix(b"# TYPE ").startswith(b"http_")
    )
