"""aiohttp as server and as client: a plain streaming proxy.    python aiohttp_both.py PORT UPSTREAM_PORT"""

import asyncio
import sys

import aiohttp
import uvloop
from aiohttp import web


async def make(upstream: str) -> web.Application:
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None),
    )

    async def relay(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        async with session.post(
            upstream + request.path, data=body, headers={"content-type": "application/json"}
        ) as answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    app = web.Application()
    app.router.add_post("/{path:.*}", relay)
    return app


async def main(port: int, upstream: int) -> None:
    runner = web.AppRunner(await make(f"http://127.0.0.1:{upstream}"), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    await asyncio.Event().wait()


uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
