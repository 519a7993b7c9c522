"""Starlette on uvicorn with httpx: what a plain streaming proxy looks like.

python starlette_httpx.py PORT UPSTREAM_PORT
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

PORT, UPSTREAM = int(sys.argv[1]), f"http://127.0.0.1:{sys.argv[2]}"
client = httpx.AsyncClient(
    timeout=None, limits=httpx.Limits(max_connections=None, max_keepalive_connections=None)
)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    yield
    await client.aclose()


async def relay(request: Request) -> StreamingResponse:
    body = await request.body()
    asked = client.build_request(
        "POST", UPSTREAM + request.url.path, content=body, headers={"content-type": "application/json"}
    )
    answer = await client.send(asked, stream=True)
    return StreamingResponse(
        answer.aiter_raw(),
        answer.status_code,
        {"content-type": answer.headers["content-type"]},
        background=BackgroundTask(answer.aclose),
    )


app = Starlette(routes=[Route("/{path:path}", relay, methods=["POST"])], lifespan=lifespan)
uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning", access_log=False, backlog=4096)
