"""The API of a vLLM server: completions, chats, tokens, models, health, metrics."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from os import urandom

import msgspec
from aiohttp import web

from controlplane.simulator.http import http_metrics, shapes, tokens
from controlplane.simulator.http.answer import Answer, answers_to
from controlplane.simulator.http.ask import (
    Ask,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    Served,
    TokenizeBody,
    chat,
    check_model,
    completion,
    conversation,
    read,
)
from controlplane.simulator.http.errors import INVALID, ApiError, invalid
from controlplane.simulator.http.replica import Replica
from controlplane.simulator.metrics_page import CONTENT_TYPE, VERSION

LARGEST_BODY_BYTES = 8 << 20

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """Answers for one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._served = Served(replica.spec.model, replica.spec.settings.max_model_len)
        self._in_flight = 0

    def add_to(self, app: web.Application) -> None:
        """Add its routes to an application."""
        app.middlewares.append(self._around)
        for path, handler in {
            "/v1/completions": self._completions,
            "/v1/chat/completions": self._chat,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/ping": self._healthy,
        }.items():
            app.router.add_post(path, handler)
        for path, handler in {
            "/v1/models": self._models,
            "/health": self._healthy,
            "/ping": self._healthy,
            "/version": self._version,
            "/load": self._load,
            "/metrics": self._metrics,
        }.items():
            app.router.add_get(path, handler)

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn errors into answers, and count the request when it has ended, however it did."""
        begun, status = time.monotonic(), HTTPStatus.OK.value  # what a client that hangs up counts as
        http = self._replica.http
        try:
            response = await handler(request)
            status = response.status
        except ApiError as error:
            response = web.Response(status=error.status, body=error.body, content_type="application/json")
            status = error.status
        except web.HTTPException as error:
            response = _json({"detail": error.reason}, error.status)
            status = error.status
        except Exception:
            status = HTTPStatus.INTERNAL_SERVER_ERROR.value
            raise
        finally:
            where = _handler_name(request)
            if where not in http_metrics.NOT_COUNTED:
                http.count(where, request.method, status, time.monotonic() - begun)
        return response

    # -- generation ------------------------------------------------------------------------------------

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = read(await _body(request), CompletionBody)
        return await self._generate(request, completion(body, self._served))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = read(await _body(request), ChatBody)
        return await self._generate(request, chat(body, self._served))

    async def _generate(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        spec, drive = self._replica.spec, self._replica.drive
        name = request.headers.get("X-Request-Id") or urandom(16).hex()
        # Two requests may have one name; in the engine each has its own.
        unique = urandom(8).hex()
        answers: list[Answer] = []
        for answer in answers_to(ask, unique, spec.settings, spec.seed):
            if answers:  # many long ones take long: nobody else has to wait for all of them
                await asyncio.sleep(0)
            answers.append(answer)
        changed = asyncio.Event()
        flows = [drive.submit(answer.request, changed, tells_each=ask.stream) for answer in answers]
        kind = "chatcmpl" if ask.is_chat else "cmpl"
        origin = shapes.Origin(f"{kind}-{name}", int(time.time()), self._served.model)
        self._in_flight += 1
        try:
            if ask.stream:
                return await _stream(request, shapes.Stream(ask, origin, answers, flows), changed)
            while not all(flow.reason for flow in flows):
                await changed.wait()
                changed.clear()
            body = shapes.whole(ask, origin, answers, flows)
            return web.Response(body=body, content_type="application/json")
        finally:
            self._in_flight -= 1
            for flow in flows:
                drive.abort(flow)

    # -- the rest --------------------------------------------------------------------------------------

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = read(await _body(request), TokenizeBody)
        if body.messages is not None:
            pieces = conversation(body.messages, body.tools, self._served.max_model_len)
        elif body.prompt is not None:
            pieces = tokens.pieces(body.prompt)
        else:
            raise invalid("body.prompt", "Field required")
        check_model(body.model, self._served.model)
        found = {
            "count": len(pieces),
            "max_model_len": self._served.max_model_len,
            "tokens": [tokens.number(piece) for piece in pieces],
            "token_strs": [piece.decode(errors="replace") for piece in pieces]
            if body.return_token_strs
            else None,
        }
        return _json(found)

    async def _detokenize(self, request: web.Request) -> web.StreamResponse:
        body = read(await _body(request), DetokenizeBody)
        check_model(body.model, self._served.model)
        if any(number < 0 for number in body.tokens):
            raise invalid("body.tokens", "Input should be greater than or equal to 0")
        return _json({"prompt": tokens.text_of(body.tokens)})

    async def _models(self, _: web.Request) -> web.StreamResponse:
        body = shapes.model_list(*self._served, int(time.time()))
        return web.Response(body=body, content_type="application/json")

    async def _healthy(self, _: web.Request) -> web.StreamResponse:
        faults = self._replica.faults
        if faults.health_delay_seconds:
            await asyncio.sleep(faults.health_delay_seconds)
        return web.Response(status=HTTPStatus.OK if faults.health == "good" else 503)

    async def _version(self, _: web.Request) -> web.StreamResponse:
        return _json({"version": VERSION})

    async def _load(self, _: web.Request) -> web.StreamResponse:
        return _json({"server_load": self._in_flight})

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        faults = self._replica.faults
        if faults.scrape_delay_seconds:
            await asyncio.sleep(faults.scrape_delay_seconds)
        if faults.scrape == "error":
            return web.Response(status=500, text="Internal Server Error")
        page = self._replica.metrics()
        headers = {"Content-Type": CONTENT_TYPE}
        if faults.scrape != "cut":
            return web.Response(body=page, headers=headers)
        response = web.StreamResponse(headers={**headers, "Content-Length": str(len(page))})
        with suppress(ConnectionResetError):
            await response.prepare(request)
            await response.write(page[: len(page) * 2 // 3])
        if request.transport is not None:
            request.transport.close()
        return response


async def _stream(request: web.Request, stream: shapes.Stream, changed: asyncio.Event) -> web.StreamResponse:
    """Write what comes until all has come, or the client has gone."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    with suppress(ConnectionResetError):
        await response.prepare(request)
        while not stream.is_over:
            await changed.wait()
            changed.clear()
            # What is due together is written together: one write, whatever it holds.
            if news := stream.news():
                await response.write(news)
        await response.write_eof()
    return response


async def _body(request: web.Request) -> bytes:
    if request.content_type != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise ApiError(400, INVALID, message)
    return await request.read()


def _handler_name(request: web.Request) -> str:
    """The path as it was routed; one word for all that was not, so that nobody can make labels."""
    info = request.match_info
    resource = info.route.resource
    if info.http_exception is not None or resource is None:
        return http_metrics.UNKNOWN
    return resource.canonical


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
