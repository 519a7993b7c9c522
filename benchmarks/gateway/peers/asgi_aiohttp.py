"""A bare ASGI application on uvicorn (httptools, uvloop) with aiohttp as client.

python asgi_aiohttp.py PORT UPSTREAM_PORT
"""

import sys
from typing import Any

import aiohttp
import uvicorn

PORT, UPSTREAM = int(sys.argv[1]), f"http://127.0.0.1:{sys.argv[2]}"
sessions: list[aiohttp.ClientSession] = []  # one, made in the loop of the server


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    if not sessions:
        sessions.append(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        )
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    async with sessions[0].post(
        UPSTREAM + scope["path"], data=body, headers={"content-type": "application/json"}
    ) as answer:
        headers = [(b"content-type", answer.headers["content-type"].encode())]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        async for chunk in answer.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


uvicorn.run(
    app, host="127.0.0.1", port=PORT, log_level="warning", access_log=False, backlog=4096, lifespan="off"
)
