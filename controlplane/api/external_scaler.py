"""KEDA's external scaler over gRPC: who asks shows a certificate, because KEDA can show nothing else.

It listens only while this daemon leads. A follower would tell nothing, and a gRPC client stays with the
server that it has found: where the port is closed it looks for another, which is the leader.

Certificates are read again for each new connection, so that a renewed one, or another authority, counts from
then on. Where one cannot be read or used then, those that were used last stay.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import grpc

from controlplane.api import external_scaler_wire as wire
from controlplane.api.autoscaling import HPA_TOLERANCE, CannotSayError, advice, tolerance_of
from controlplane.api.external_scaler_settings import ExternalScalerSettings
from controlplane.api.state import State

METRIC = "replicas"
_MOST_STREAMS = 200  # that stay open: one for each trigger of KEDA's kind `external-push`
_MOST_CALLS = 2 * _MOST_STREAMS  # KEDA asks all by one connection: streams must leave room for questions
_LARGEST_MESSAGE_BYTES = 64 * 1024
_STOP_SECONDS = 1.0
_LARGEST_FILE_BYTES = 1 << 20

_log = logging.getLogger(__name__)


class _Certificates:
    """What the server shows and asks for. Raises OSError, which names the file, where one cannot be read."""

    def __init__(self, settings: ExternalScalerSettings) -> None:
        self._paths = settings.tls_key, settings.tls_cert, settings.client_ca
        self._known = self._read()
        self._trouble = ""
        self.credentials = grpc.dynamic_ssl_server_credentials(
            _configuration(self._known), self._renewed, require_client_authentication=True
        )

    def _read(self) -> tuple[bytes, ...]:
        return tuple(_content(path) for path in self._paths)

    def _renewed(self) -> Any:
        """Other certificates than those before, for a connection that begins; None where they are the same.
        gRPC calls it from threads of its own."""
        try:
            found = self._read()
        except OSError as error:
            if str(error) != self._trouble:
                _log.warning("the external scaler keeps the certificates that it has: %s", error)
            self._trouble = str(error)
            return None
        self._trouble = ""
        if found == self._known:
            return None
        self._known = found
        _log.info("the external scaler has read its certificates again")
        return _configuration(found)


def _configuration(files: tuple[bytes, ...]) -> Any:
    key, cert, authority = files
    return grpc.ssl_server_certificate_configuration([(key, cert)], authority)


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LARGEST_FILE_BYTES)


class ExternalScaler:
    """The server of one daemon: `start` it, then `close` it. `port` is 0 while it does not listen."""

    def __init__(self, state: State, settings: ExternalScalerSettings) -> None:
        self._state, self._settings = state, settings
        self._changed = asyncio.Event()
        self._unsubscribe: Callable[[], None] = lambda: None
        self._task: asyncio.Task[None] | None = None
        self._server: Any = None
        self._streams = 0
        self._trouble = ""
        self.port = 0

    def start(self) -> None:
        """Listen as soon as we lead. Raises OSError where a certificate cannot be read."""
        _Certificates(self._settings)
        self._unsubscribe = self._state.subscribe(lambda _snapshot, _decisions: self._changed.set())
        self._changed.set()
        self._task = asyncio.create_task(self._follow(), name="external-scaler")

    async def close(self) -> None:
        """Stop listening and end the streams."""
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._stop()

    async def _follow(self) -> None:
        """Listen while we lead."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            leads = self._state.status().leads
            if leads and self._server is None:
                await self._listen()
            elif not leads and self._server is not None:
                await self._stop()

    async def _listen(self) -> None:
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _LARGEST_MESSAGE_BYTES),
                ("grpc.max_concurrent_streams", _MOST_CALLS),
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=_MOST_CALLS,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(wire.SERVICE, self._methods()),)
        )
        try:
            certificates = _Certificates(self._settings)
            self.port = server.add_secure_port(self._settings.listen, certificates.credentials)
            await server.start()
        except (OSError, RuntimeError) as error:
            # With the next tick it is tried again: a certificate may be renewed just now.
            if str(error) != self._trouble:
                _log.warning("the external scaler cannot listen on %s: %s", self._settings.listen, error)
            self._trouble, self.port = str(error), 0
            return
        self._server, self._trouble = server, ""
        _log.info("the external scaler listens on %s", self._settings.listen)

    async def _stop(self) -> None:
        server, self._server, self.port = self._server, None, 0
        if server is not None:
            await server.stop(_STOP_SECONDS)

    def _methods(self) -> dict[str, Any]:
        def unary(method: Any, asked: Any, answered: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                method, request_deserializer=asked.FromString, response_serializer=answered.SerializeToString
            )

        return {
            "IsActive": unary(self._is_active, wire.ScaledObjectRef, wire.IsActiveResponse),
            "GetMetricSpec": unary(self._metric_spec, wire.ScaledObjectRef, wire.GetMetricSpecResponse),
            "GetMetrics": unary(self._metrics, wire.GetMetricsRequest, wire.GetMetricsResponse),
            "StreamIsActive": grpc.unary_stream_rpc_method_handler(
                self._stream,
                request_deserializer=wire.ScaledObjectRef.FromString,
                response_serializer=wire.IsActiveResponse.SerializeToString,
            ),
        }

    async def _is_active(self, asked: Any, context: Any) -> Any:
        return wire.IsActiveResponse(result=(await self._advice(asked, context)).active)

    async def _metric_spec(self, asked: Any, context: Any) -> Any:
        """The same for every pool; but a trigger that is wrong is told so when it is set up."""
        await _asked(asked, context)
        spec = wire.MetricSpec(metricName=METRIC, targetSize=1, targetSizeFloat=1.0)
        return wire.GetMetricSpecResponse(metricSpecs=[spec])

    async def _metrics(self, asked: Any, context: Any) -> Any:
        told = await self._advice(asked.scaledObjectRef, context)
        # A version that knows whole numbers only gets the next one above: rather too many than too few.
        value = wire.MetricValue(
            metricName=asked.metricName or METRIC,
            metricValue=math.ceil(told.value),
            metricValueFloat=told.value,
        )
        return wire.GetMetricsResponse(metricValues=[value])

    async def _stream(self, asked: Any, context: Any) -> AsyncIterator[Any]:
        """Whether it is active, now and with each change. What cannot be said is not sent."""
        pool, tolerance = await _asked(asked, context)
        if self._streams >= _MOST_STREAMS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"there are {_MOST_STREAMS} streams already"
            )
        ticked = asyncio.Event()
        unsubscribe = self._state.subscribe(lambda _snapshot, _decisions: ticked.set())
        self._streams += 1
        last: bool | None = None
        try:
            while True:
                active = last
                with contextlib.suppress(CannotSayError):
                    active = advice(self._state, pool, tolerance).active
                if active is not None and active != last:
                    yield wire.IsActiveResponse(result=active)
                    last = active
                await ticked.wait()
                ticked.clear()
        finally:
            self._streams -= 1
            unsubscribe()

    async def _advice(self, asked: Any, context: Any) -> Any:
        pool, tolerance = await _asked(asked, context)
        try:
            return advice(self._state, pool, tolerance)
        except CannotSayError as error:
            code = grpc.StatusCode.NOT_FOUND if error.unknown_pool else grpc.StatusCode.UNAVAILABLE
            await context.abort(code, str(error))


async def _asked(asked: Any, context: Any) -> tuple[str, Fraction]:
    """The pool and the HPA's tolerance in the trigger's metadata."""
    pool = asked.scalerMetadata.get("pool", "")
    text = asked.scalerMetadata.get("tolerance", "")
    try:
        if not pool:
            raise ValueError("the trigger's metadata need `pool`")
        return pool, tolerance_of(text) if text else HPA_TOLERANCE
    except ValueError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise AssertionError("abort raises") from None
