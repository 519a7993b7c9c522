"""The page over HTTP: who gets it, what guards it, what is escaped, how large it is."""

import gzip
import html
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from fleet_fakes import FakeDaemon, replica
from page_fleet import AT, EVIL, night

from controlplane.api.server import ApiServer
from controlplane.api.settings import ApiSettings
from controlplane.signals.decision import Hold, Orders

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
ORDERS = (
    ("/order?kind=hold", "POST", "/api/v1/hold"),
    ("/order?kind=release", "DELETE", "/api/v1/hold"),
    ("/order?kind=limit&scope=pool&name=chat", "PUT", "/api/v1/overrides"),
    ("/order?kind=mode&scope=pool&name=chat", "PUT", "/api/v1/overrides"),
    ("/order?kind=node&scope=node&name=node-001", "PUT", "/api/v1/overrides"),
    ("/order?kind=clear&scope=pool&name=chat&setting=limit", "DELETE", "/api/v1/overrides"),
)


class Api:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def get(self, path: str, **headers: str) -> tuple[int, str, Any]:
        async with self._session.get(self._url + path, headers=BROWSER | headers) as answer:
            return answer.status, await answer.text(), answer.headers

    async def post(self, path: str, body: object) -> int:
        opened = {"authorization": "Bearer s3cret"}
        async with self._session.post(self._url + path, json=body, headers=opened) as answer:
            return answer.status


@asynccontextmanager
async def serving(daemon: FakeDaemon, **options: Any) -> AsyncIterator[Api]:
    server = ApiServer(daemon, ApiSettings(listen="127.0.0.1:0", **options))
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Api(session, server.url)
    finally:
        await server.stop()


async def test_browsers_get_the_page_and_programs_the_index() -> None:
    async with serving(night()) as api:
        _, page, headers = await api.get("/")
        assert page.startswith("<!doctype html>")
        assert headers["content-type"] == "text/html; charset=utf-8"
        _, index, headers = await api.get("/", accept="*/*")
        assert "/api/v1/fleet" in index
        assert headers["content-type"].startswith("text/plain")


async def test_the_page_is_closed_to_scripts_of_others_and_kept_by_nobody() -> None:
    async with serving(night()) as api:
        for path in ("/", "/order?kind=hold"):
            _, page, headers = await api.get(path)
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self'" in policy
            assert "unsafe" not in policy
            assert headers["cache-control"] == "no-store"
            assert headers["x-content-type-options"] == "nosniff"
            assert " style=" not in page
            assert "<style" not in page
            assert not re.search(r"\son\w+=", re.sub(r"<[^>]*onerror[^>]*>", "", html.unescape(page)))
            assert re.findall(r'(?:src|href)="(https?:|//)', page) == []
        _, _, headers = await api.get("/api/v1/fleet")
        assert headers["content-security-policy"].startswith("default-src 'none'; frame"), (
            "as strict as before"
        )


async def test_names_from_outside_are_words_and_never_markup() -> None:
    async with serving(night()) as api:
        _, page, _ = await api.get("/")
        assert "<img" not in page
        assert html.escape(EVIL).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in page
        for scope in ("replica", "pool"):
            status, form, _ = await api.get(
                f"/order?kind=limit&scope={scope}&name=%3Cimg%20src=x%20onerror=alert(1)%3E"
            )
            assert status == 200
            assert "<img" not in form


async def test_letters_that_turn_the_line_around_are_not_shown_and_such_a_name_takes_no_orders() -> None:
    daemon = night()
    assert daemon.seen is not None
    turned = {"\u202egpj.x": replica("\u202egpj.x")}
    daemon.seen = msgspec.structs.replace(daemon.seen, replicas=turned)
    async with serving(daemon) as api:
        _, page, _ = await api.get("/")
        assert "\u202e" not in page
        assert "%E2%80%AE" not in page


async def test_the_part_that_is_asked_for_anew_is_the_page_without_its_frame() -> None:
    async with serving(night()) as api:
        _, part, headers = await api.get("/?troubled=1", **{"hx-request": "true"})
        assert part.startswith('<div id="live" hx-get="/?troubled=1"')
        assert "hx-request" in headers["vary"]
        assert "Replicas (3)" in part


async def test_files_of_the_page_are_kept_for_good_and_there_are_no_others() -> None:
    async with serving(night()) as api:
        _, page, _ = await api.get("/")
        addresses = re.findall(r'(?:src|href)="(/page/[^"]+)"', page)
        assert len(addresses) == 4
        for address in addresses:
            status, _, headers = await api.get(address)
            assert status == 200
            assert "immutable" in headers["cache-control"]
        for path in ("/page/__init__.py", "/page/..%2Froutes.py", "/page/HTMX-LICENSE"):
            status, _, _ = await api.get(path)
            assert status == 404, path


@pytest.mark.parametrize(("path", "method", "to"), ORDERS)
async def test_each_form_of_an_order_says_where_it_goes_and_keeps_no_token(
    tmp_path: Path, path: str, method: str, to: str
) -> None:
    (tmp_path / "token").write_text("s3cret")
    async with serving(night(), token_file=tmp_path / "token") as api:
        status, form, _ = await api.get(path)
        assert status == 200
        assert f'data-method="{method}" data-path="{to}"' in form
        assert '<input name="token" type="password" required' in form
        assert "s3cret" not in form


async def test_without_a_token_there_is_no_form_but_a_reason() -> None:
    async with serving(night()) as api:
        _, form, _ = await api.get("/order?kind=hold")
        assert "no token is configured (api.token_file or api.token_env)" in form
        assert "<form" not in form


@pytest.mark.parametrize(
    "path",
    [
        "/order",
        "/order?kind=nonsense",
        "/order?kind=limit&name=a",
        "/order?kind=clear&scope=pool&setting=limit",
        "/order?kind=limit&scope=rack&name=a",
        "/order?kind=limit&scope=pool&name=a%0Ab",
        "/?page=0",
        f"/?text={'a' * 101}",
    ],
)
async def test_what_makes_no_sense_is_refused_in_a_sentence(path: str) -> None:
    async with serving(night()) as api:
        status, answer, _ = await api.get(path)
        assert status == 422
        assert '"code":"invalid"' in answer


async def test_what_fires_stands_beside_what_was_decided_and_links_only_to_pages(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")

    def alert(name: str, severity: str, link: str) -> dict[str, object]:
        return {
            "status": "firing",
            "labels": {"alertname": name, "severity": severity},
            "annotations": {"summary": f"{EVIL} burns", "runbook_url": link},
            "startsAt": "2025-11-24T15:50:00Z",
            "fingerprint": name,
        }

    told = [alert("Burn", "page", "https://example.org/burn"), alert("Odd", "ticket", "javascript:alert(1)")]
    async with serving(night(), token_file=tmp_path / "token") as api:
        assert await api.post("/api/v1/alerts", {"version": "4", "alerts": told}) == 200
        _, page, _ = await api.get("/")
        assert "1 page, 1 ticket; Burn for " in page
        assert 'href="https://example.org/burn" rel="noreferrer noopener"' in page
        assert "javascript:" not in page
        assert "<img" not in page


async def test_a_journal_that_cannot_be_read_takes_nothing_else_away() -> None:
    daemon = night()
    daemon.journal = OSError("disk gone")
    async with serving(daemon) as api:
        _, page, _ = await api.get("/")
        assert "The journal cannot be read: disk gone" in page
        assert "Pool chat: at most 84.6%" in page


async def test_before_the_first_tick_there_is_a_page_too() -> None:
    daemon = night()
    daemon.seen = None
    async with serving(daemon) as api:
        status, page, _ = await api.get("/")
        assert status == 200
        assert "There are no pools yet" in page


async def test_many_readers_cost_one_page_a_second_and_one_look_at_the_journal() -> None:
    daemon = night()
    async with serving(daemon) as api:
        _, first, _ = await api.get("/")
        daemon.told = ()
        assert (await api.get("/"))[1] == first
        daemon.clock += 1.5
        assert "Nothing was decided" in (await api.get("/"))[1]
        daemon.ordered = Orders(Hold(AT, "ann", "deploy"))
        assert ">HOLD<" in (await api.get("/"))[1], "an order is seen at once"
        daemon.clock -= 3600  # the clock is set back
        assert (await api.get("/"))[0] == 200


async def test_500_replicas_and_2000_gpus_are_paged_small_and_quick() -> None:
    daemon = night(500, 250)
    async with serving(daemon) as api:
        took = []
        for number in range(1, 6):
            daemon.clock += 2
            started = time.perf_counter()
            _, part, _ = await api.get(f"/?page={number}", **{"hx-request": "true"})
            took.append(time.perf_counter() - started)
        assert part.count('<tbody id="replica-') == 50
        assert part.count('<tbody id="node-') == 20
        assert len(gzip.compress(part.encode(), 1)) < 64 * 1024
        assert min(took) < 0.5, "on a noisy machine; 40 ms on a quiet one"
