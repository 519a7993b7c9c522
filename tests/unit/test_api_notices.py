"""Decisions told to a chat and to Grafana: once, in their own words, and to nobody's harm."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from fleet_fakes import FakeDaemon, decision

from controlplane.api import notices
from controlplane.api.notices import MOST_WAITING, Notices, NoticeSettings, bodies
from controlplane.api.server import ApiServer
from controlplane.api.settings import ApiSettings


class Receiver:
    """A chat or a Grafana that keeps what it is sent."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, Any], str]] = []
        self.status = 200
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.got.append(
            (request.path, json.loads(await request.read()), request.headers.get("authorization", ""))
        )
        return web.Response(status=self.status, headers={"location": "http://127.0.0.1:1/"})


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    app = web.Application()
    app.router.add_post("/{path:.*}", made.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.url = f"http://{host}:{port}"
    yield made
    await runner.cleanup()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "PAUSE_SECONDS", 0.0)


def settings(folder: Path, kind: str, url: str, token: str = "") -> NoticeSettings:
    (folder / "url").write_text(f"{url}\n")
    (folder / "token").write_text(token)
    return NoticeSettings(kind=kind, url_file=folder / "url", token_file=folder / "token" if token else None)


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - whatever the condition is, it has no event
            await asyncio.sleep(0.005)


async def test_a_chat_gets_the_sentences_in_slacks_form(receiver: Receiver, tmp_path: Path) -> None:
    daemon = FakeDaemon()
    told = Notices(daemon, settings(tmp_path, "slack", f"{receiver.url}/services/T0/B0/secret"))
    daemon.tick(msgspec.structs.replace(decision(), sentence="a < b & <!channel>"))
    await until(lambda: told.sent)
    await told.close()
    ((path, body, authorization),) = receiver.got
    assert path == "/services/T0/B0/secret"
    assert authorization == ""
    assert body == {"text": f"*{decision().action} {decision().target}* a &lt; b &amp; &lt;!channel&gt;"}
    assert not daemon.listeners


async def test_grafana_gets_an_annotation_with_the_sentence(receiver: Receiver, tmp_path: Path) -> None:
    daemon = FakeDaemon()
    told = Notices(daemon, settings(tmp_path, "grafana", receiver.url, "glsa_1"))
    daemon.tick(decision(), decision())
    await until(lambda: told.sent == 2)
    await told.close()
    path, body, authorization = receiver.got[0]
    assert path == "/api/annotations"
    assert authorization == "Bearer glsa_1"
    assert body["time"] == round(decision().at * 1000)
    assert body["tags"][:2] == ["controlplane", "decision"]
    assert decision().sentence in body["text"]
    assert len(receiver.got) == 2


async def test_the_annotations_are_those_that_the_dashboards_ask_for() -> None:
    board = json.loads((Path(__file__).parents[2] / "dashboards/control.json").read_text())
    asked = next(a for a in board["annotations"]["list"] if a["type"] == "tags")["target"]["tags"]
    assert set(asked) <= set(bodies("grafana", [decision()])[0]["tags"])


async def test_the_steps_of_limits_do_not_drown_what_people_must_know(
    receiver: Receiver, tmp_path: Path
) -> None:
    daemon = FakeDaemon()
    told = Notices(daemon, settings(tmp_path, "slack", receiver.url))
    steps = [decision(action="set-limit")] * (MOST_WAITING + 1)
    daemon.tick(decision(sentence="a node is broken"), *steps)
    await until(lambda: told.sent)
    await told.close()
    assert (told.sent, told.lost) == (1, 0)
    assert "a node is broken" in receiver.got[0][1]["text"]


async def test_ticks_without_decisions_send_nothing(receiver: Receiver, tmp_path: Path) -> None:
    daemon = FakeDaemon()
    told = Notices(daemon, settings(tmp_path, "slack", receiver.url))
    daemon.tick()
    daemon.tick(decision())
    await until(lambda: told.sent)
    await told.close()
    assert len(receiver.got) == 1


@pytest.mark.parametrize("status", [302, 404, 500])
async def test_a_refusal_is_logged_once_and_the_next_notice_is_tried(
    receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    daemon = FakeDaemon()
    receiver.status = status
    told = Notices(daemon, settings(tmp_path, "slack", f"{receiver.url}/secret"))
    with caplog.at_level(logging.WARNING):
        for lost in (1, 2):
            daemon.tick(decision())
            await until(lambda lost=lost: told.lost == lost)
    receiver.status = 200
    daemon.tick(decision())
    await until(lambda: told.sent == 1)
    await told.close()
    assert [record.message for record in caplog.records] == [
        f"notices to slack are lost: it answered {status}"
    ]


async def test_the_address_is_in_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    daemon = FakeDaemon()
    told = Notices(daemon, settings(tmp_path, "slack", "http://127.0.0.1:9/services/secret"))
    with caplog.at_level(logging.DEBUG):
        daemon.tick(decision())
        await until(lambda: told.lost == 1)
        (tmp_path / "url").write_text("two secret words")
        daemon.tick(decision())
        await until(lambda: told.lost == 2)
        (tmp_path / "url").write_text("not-an-address-secret")
        daemon.tick(decision())
        await until(lambda: told.lost == 3)
    await told.close()
    assert len(caplog.records) == 3
    assert "secret" not in caplog.text
    assert str(tmp_path / "url") in caplog.text


async def test_a_receiver_that_hangs_costs_notices_and_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "LONGEST_SECONDS", 3600.0)
    daemon = FakeDaemon()
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    told = Notices(daemon, settings(tmp_path, "slack", f"http://127.0.0.1:{port}"))
    for _ in range(100):
        daemon.tick(*[decision()] * 10)
    assert told.lost == 1000 - MOST_WAITING
    await asyncio.sleep(0.05)  # the first message is on its way and stays there
    await asyncio.wait_for(told.close(), 60)
    server.close()


async def test_the_served_api_tells_what_the_daemon_decides(receiver: Receiver, tmp_path: Path) -> None:
    daemon = FakeDaemon()
    told = settings(tmp_path, "slack", receiver.url)
    server = ApiServer(daemon, ApiSettings(listen="127.0.0.1:0", notices=(told,)))
    await server.start()
    daemon.tick(decision())
    await until(lambda: receiver.got)
    await server.stop()
    assert not daemon.listeners


def test_settings_refuse_what_they_do_not_know(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="teams"):
        NoticeSettings(kind="teams", url_file=tmp_path)
