"""KEDA's metrics-api trigger: one number by HTTP, for those with the token."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import fleet_fakes as fakes
import pytest
from test_advice import scaled

from controlplane.api.server import ApiServer
from controlplane.api.settings import ApiSettings, TokenError

SHOWN = {"authorization": "Bearer a-token-for-tests"}


@asynccontextmanager
async def api(daemon: fakes.FakeDaemon, token: Path | None, own: Path | None = None) -> AsyncIterator[Any]:
    settings = ApiSettings(listen="127.0.0.1:0", token_file=token, autoscaling_token_file=own)
    server = ApiServer(daemon, settings)
    await server.start()
    try:
        async with aiohttp.ClientSession(server.url) as session:
            yield session
    finally:
        await server.stop()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("a-token-for-tests\n")
    return path


async def test_one_number_for_those_with_the_token(token: Path) -> None:
    async with api(scaled(11, 10), token) as session:
        async with session.get("/api/v1/autoscaling/chat", headers=SHOWN) as answer:
            assert answer.status == 200
            assert await answer.json() == {
                "pool": "chat",
                "active": True,
                "value": 12.0,
                "desired": 11,
                "current": 10,
                "why": "so much work",
            }
        async with session.get("/api/v1/autoscaling/chat?tolerance=0", headers=SHOWN) as answer:
            assert (await answer.json())["value"] == 11.0


@pytest.mark.parametrize(
    ("shown", "code"),
    [({}, "token_missing"), ({"authorization": "Bearer another"}, "token_wrong")],
)
async def test_nothing_for_others(token: Path, shown: dict[str, str], code: str) -> None:
    async with api(scaled(11, 10), token) as session:
        for method in ("GET", "HEAD"):
            async with session.request(method, "/api/v1/autoscaling/chat", headers=shown) as answer:
                assert answer.status == 401
                if method == "GET":
                    assert (await answer.json())["error"]["code"] == code


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own"
    path.write_text("for-autoscalers\n")
    return path


async def test_a_token_of_its_own_opens_it_and_nothing_else(token: Path, own: Path) -> None:
    shown = {"authorization": "Bearer for-autoscalers"}
    async with api(scaled(11, 10), token, own) as session:
        for headers, method, path, status in (
            (shown, "GET", "/api/v1/autoscaling/chat", 200),
            (SHOWN, "GET", "/api/v1/autoscaling/chat", 200),
            (shown, "POST", "/api/v1/autoscaling/chat", 401),
            (shown, "POST", "/api/v1/hold", 401),
            ({"authorization": "Bearer another"}, "GET", "/api/v1/autoscaling/chat", 401),
        ):
            async with session.request(method, path, headers=headers) as answer:
                assert answer.status == status, (method, path)
        own.unlink()  # noqa: ASYNC240
        async with session.get("/api/v1/autoscaling/chat", headers=SHOWN) as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["code"] == "token_unavailable"
    with pytest.raises(TokenError, match="autoscaling_token_file"):
        async with api(scaled(11, 10), token, own):
            pass


async def test_a_token_of_its_own_is_enough(own: Path) -> None:
    async with api(scaled(11, 10), None, own) as session:
        shown = {"authorization": "Bearer for-autoscalers"}
        async with session.get("/api/v1/autoscaling/chat", headers=shown) as answer:
            assert answer.status == 200
        async with session.post("/api/v1/hold", headers=shown, json={}) as answer:
            assert answer.status == 403


async def test_without_a_token_it_is_not_served() -> None:
    async with api(scaled(11, 10), None) as session, session.get("/api/v1/autoscaling/chat") as answer:
        assert answer.status == 403


async def test_errors_are_sentences(token: Path) -> None:
    follows = fakes.FakeDaemon(how=fakes.status(leads=False, follows="cp-1"))
    for daemon, path, status, why in (
        (scaled(1, 1), "nope", 404, "there is no pool 'nope'"),
        (scaled(1, 1), "chat?tolerance=2", 422, "tolerance is a share from 0 to 1, like 0.1 (got '2')"),
        (follows, "chat", 503, "this daemon follows cp-1: ask the leader"),
    ):
        async with (
            api(daemon, token) as session,
            session.get(f"/api/v1/autoscaling/{path}", headers=SHOWN) as answer,
        ):
            assert answer.status == status
            assert (await answer.json())["error"]["message"] == why
            if status == 503:
                assert answer.headers["connection"] == "close", "the next request may find the leader"
