"""The API over a real socket: shapes, errors, limits, the token, the stream, start and stop."""

import asyncio
import hmac
import json
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf, nan
from pathlib import Path
from typing import Any

import aiohttp
import fleet_fakes as fakes
import jsonschema
import msgspec
import pytest
import trustme
from fleet_fakes import AT, FakeDaemon, fleet, known, replica
from hypothesis import HealthCheck, given, settings
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from pydantic import ValidationError

from controlplane.api import answers, connection, guard, shapes
from controlplane.api import stream as streaming
from controlplane.api.app import create_app
from controlplane.api.server import ApiServer, ApiStartError
from controlplane.api.settings import ApiSettings, TokenError
from controlplane.signals.decision import Decision, Event, Hold, Orders, Override, Standing
from controlplane.signals.interval import Interval
from controlplane.signals.reading import Reason, Unknown
from controlplane.signals.snapshot import FleetSnapshot, Out

TOKEN = "a-token-for-tests"
HOLD = {"reason": "deploy of chat", "by": "ann"}
OVERRIDE = {
    "scope": "pool",
    "name": "chat",
    "setting": "mode",
    "value": "observe",
    "reason": "looking first",
    "by": "ann",
}


class Api:
    """A client of one served API."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession, daemon: FakeDaemon) -> None:
        self.server, self.session, self.daemon = server, session, daemon

    async def ask(self, path: str, method: str = "GET", **options: Any) -> tuple[int, Any]:
        async with self.session.request(method, self.server.url + path, **options) as response:
            text = await response.text()
            return response.status, strict(text) if text.startswith("{") else text

    async def write(self, path: str, method: str, **options: Any) -> tuple[int, Any]:
        return await self.ask(path, method, headers={"authorization": f"Bearer {TOKEN}"}, **options)


def strict(text: str) -> Any:
    """JSON as the standard has it: NaN and Infinity are errors."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@asynccontextmanager
async def serving(daemon: FakeDaemon | None = None, **options: Any) -> AsyncIterator[Api]:
    daemon = daemon or FakeDaemon()
    server = ApiServer(daemon, ApiSettings(listen="127.0.0.1:0", **options))
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Api(server, session, daemon)
    finally:
        await server.stop()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


# -- reading ---------------------------------------------------------------------------------------


async def test_a_probe_of_a_replica_says_whether_it_gets_requests() -> None:
    gone = Out(AT - 3, "wedged", "it has work and makes no token")
    there = fleet(replica("a:1"), replica("b:1", out=gone), replica("c:1", out=gone))
    daemon = FakeDaemon(there, fakes.status(out=frozenset({"b:1"})))
    async with serving(daemon) as api:
        assert await api.ask("/readiness/a:1") == (200, "in\n")
        assert await api.ask("/readiness/b:1") == (503, "out: wedged\n")
        assert await api.ask("/readiness/c:1") == (200, "in\n")  # it should be, but nothing is enforced
        status, body = await api.ask("/readiness/nobody:1")
        assert (status, body["error"]["code"]) == (404, "not_found")
        daemon.seen = None
        assert (await api.ask("/readiness/b:1"))[0] == 200


async def test_every_answer_has_the_shape_that_openapi_documents(token_file: Path) -> None:
    node = fakes.node(verdicts=(fakes.verdict(),), quarantined=fakes.mark())
    both = replica(), replica("10.0.0.7:8000/a", "batch")
    daemon = FakeDaemon(fleet(*both, orders=Orders(), nodes={node.name: node}))
    async with serving(daemon, token_file=token_file) as api:
        _, openapi = await api.ask("/openapi.json")
        validated = set()
        for method, path, route, options in (
            ("get", "/healthz", "/healthz", {}),
            ("get", "/readyz", "/readyz", {}),
            ("get", "/api/v1/fleet", "/api/v1/fleet", {}),
            ("get", "/api/v1/pools", "/api/v1/pools", {}),
            ("get", "/api/v1/pools/chat", "/api/v1/pools/{name}", {}),
            ("get", "/api/v1/replicas", "/api/v1/replicas", {}),
            ("get", "/api/v1/replicas/10.0.0.7:8000/a", "/api/v1/replicas/{name}", {}),
            ("get", "/api/v1/nodes", "/api/v1/nodes", {}),
            ("get", "/api/v1/autoscaling/chat", "/api/v1/autoscaling/{name}", {}),
            ("get", "/api/v1/events", "/api/v1/events", {}),
            ("get", "/api/v1/decisions", "/api/v1/decisions", {}),
            ("post", "/api/v1/hold", "/api/v1/hold", {"json": HOLD}),
            ("put", "/api/v1/overrides", "/api/v1/overrides", {"json": OVERRIDE}),
            ("get", "/api/v1/orders", "/api/v1/orders", {}),
            ("post", "/api/v1/alerts", "/api/v1/alerts", {"json": {"version": "4", "alerts": []}}),
            ("get", "/api/v1/alerts", "/api/v1/alerts", {}),
            ("delete", "/api/v1/hold?by=ann", "/api/v1/hold", {}),
            (
                "delete",
                "/api/v1/overrides?scope=pool&name=chat&setting=mode&by=ann",
                "/api/v1/overrides",
                {},
            ),
        ):
            status, answer = await api.write(path, method.upper(), **options)
            assert status == 200, (path, answer)
            check(answer, openapi, route, method, "200")
            validated.add((route, method))
        documented = {(route, method) for route, item in openapi["paths"].items() for method in item}
        assert documented - validated == {
            ("/metrics", "get"),
            ("/api/v1/stream", "get"),
            ("/readiness/{name}", "get"),
        }
        status, answer = await api.ask("/api/v1/pools/nope")
        assert status == 404
        check(answer, openapi, "/api/v1/pools/{name}", "get", "default")


def check(answer: object, openapi: dict[str, Any], route: str, method: str, status: str) -> None:
    content = openapi["paths"][route][method]["responses"][status]["content"]
    schema = closed({**content["application/json"]["schema"], "components": openapi["components"]})
    jsonschema.Draft202012Validator(schema).validate(answer)


def closed(schema: Any) -> Any:
    """The schema with no room for what it does not name, so that it must name everything."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    shut = {key: closed(part) for key, part in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        shut["additionalProperties"] = False
    return shut


async def test_known_and_unknown_readings() -> None:
    load = msgspec.structs.replace(
        fakes.load(), running=Unknown(Reason.SCRAPE_FAILED, AT - 30, "no route"), kv_usage=known(nan)
    )
    wide = msgspec.structs.replace(fakes.goodput(), good_requests=Interval(3.0, inf))
    async with serving(FakeDaemon(fleet(replica(load=load, goodput=wide)))) as api:
        _, one = await api.ask("/api/v1/replicas/vllm-0:8000")
    assert one["load"]["running"] == {
        "unknown": "scrape-failed",
        "detail": "no route",
        "at": AT - 30,
        "age_seconds": 31.0,
    }
    assert one["load"]["waiting"] == {"value": 3.0, "at": AT, "age_seconds": 1.0, "quality": "exact"}
    assert one["load"]["waiting_tokens"]["quality"] == "estimate"
    assert one["load"]["kv_usage"]["unknown"] == "not-a-number"
    assert one["goodput"]["good_requests"] == {"low": 3.0, "high": None}
    assert one["goodput"]["ratio"] == {"low": 0.03, "high": None}
    assert one["goodput"]["ratio_point"] == 0.88
    assert one["latency"]["ttft"]["value"]["p95"] == pytest.approx(0.85)
    assert one["engines"]["0"]["running"]["value"] == 12


async def test_too_few_requests_have_counts_and_no_ratio() -> None:
    few = msgspec.structs.replace(fakes.goodput(), unknown=Reason.TOO_FEW)
    async with serving(FakeDaemon(fleet(replica(goodput=few)))) as api:
        _, one = await api.ask("/api/v1/replicas/vllm-0:8000")
    assert one["goodput"]["unknown"] == "too-few"
    assert one["goodput"]["requests"] == 100
    assert one["goodput"]["ratio"] is None
    assert one["goodput"]["token_ratio_point"] is None


async def test_the_fleet_in_one_page() -> None:
    hold = Hold(AT - 5, "ann", "deploy")
    how = fakes.status(
        troubles=("the journal cannot be written",),
        pool_standings={"chat": {"gateway": Standing.HELD, "node": Standing.OBSERVE}},
        leads=False,
    )
    daemon = FakeDaemon(ordered=Orders(hold), how=how)
    async with serving(daemon) as api:
        _, fleet_page = await api.ask("/api/v1/fleet")
        _, health = await api.ask("/healthz")
    assert fleet_page["replicas"] == {
        "unseen": 0,
        "up": 1,
        "asleep": 0,
        "unreachable": 0,
        "not-an-engine": 0,
    }
    assert fleet_page["orders"]["hold"] == {"since": AT - 5, "by": "ann", "reason": "deploy"}
    assert fleet_page["troubles"] == health["troubles"] == ["the journal cannot be written"]
    assert health["hold"] is True
    assert fleet_page["leads"] is False
    chat = fleet_page["pools"][0]
    assert chat["standings"] == {"gateway": "held", "node": "observe"}
    assert chat["objective"] == {"ttft_seconds": 2.5, "tpot_seconds": 0.05, "ratio": 0.95}
    assert chat["totals"]["good"] == {"low": 800.0, "high": 850.0}


async def test_replicas_come_in_pages() -> None:
    many = fleet(*[replica(f"vllm-{i}", "chat" if i % 2 else "batch") for i in range(7)])
    async with serving(FakeDaemon(many)) as api:
        _, page = await api.ask("/api/v1/replicas?limit=3&offset=2")
        assert [one["name"] for one in page["items"]] == ["vllm-2", "vllm-3", "vllm-4"]
        assert (page["total"], page["limit"], page["offset"]) == (7, 3, 2)
        _, page = await api.ask("/api/v1/replicas?pool=chat")
        assert [one["name"] for one in page["items"]] == ["vllm-1", "vllm-3", "vllm-5"]
        _, page = await api.ask("/api/v1/replicas?offset=9")
        assert page["items"] == []
        status, error = await api.ask("/api/v1/replicas?limit=1001")
        assert status == 422
        assert error["error"]["code"] == "invalid"
        assert "limit" in error["error"]["message"]
        assert "1001" in error["error"]["message"]


async def test_nodes_come_in_pages_with_what_is_held_against_their_gpus() -> None:
    held = fakes.node("gpu-node-1", verdicts=(fakes.verdict(),), quarantined=fakes.mark(since=inf))
    blind = fakes.node("gpu-node-0", blind_since=AT - 90)
    nodes = {one.name: one for one in (held, blind, fakes.node("gpu-node-2"))}
    async with serving(FakeDaemon(fleet(nodes=nodes))) as api:
        _, page = await api.ask("/api/v1/nodes?limit=2")
        _, rest = await api.ask("/api/v1/nodes?limit=2&offset=2")
    assert [one["name"] for one in page["items"]] == ["gpu-node-0", "gpu-node-1"]
    assert page["items"][0] == {
        "name": "gpu-node-0",
        "gpus": 8,
        "blind_since": AT - 90,
        "verdicts": [],
        "quarantined": None,
    }
    (found,) = page["items"][1]["verdicts"]
    assert found == msgspec.to_builtins(fakes.verdict())
    assert page["items"][1]["quarantined"]["reason"] == "XID 79 on GPU-5f3c"
    assert page["items"][1]["quarantined"]["since"] is None
    assert [one["name"] for one in rest["items"]] == ["gpu-node-2"]
    assert page["total"] == rest["total"] == 3


async def test_filters_of_records_reach_the_journal() -> None:
    async with serving() as api:
        _, page = await api.ask("/api/v1/decisions?since=15m&target=pool/chat&action=assess&limit=7")
        assert api.daemon.asked == {
            "since": api.daemon.clock - 900,
            "target": "pool/chat",
            "action": "assess",
            "limit": 7,
        }
        evidence = page["items"][0]["evidence"][1]
        assert evidence == {"name": "kv_usage", "value": None, "age_seconds": 40.0, "unknown": "stale"}
        await api.ask(f"/api/v1/events?since={AT}&kind=restart")
        assert api.daemon.asked == {"since": AT, "target": None, "kind": "restart", "limit": 100}
        for wrong in ("yesterday", "-5", "nan", "1e400", "5"[:0]):
            status, error = await api.ask(f"/api/v1/events?since={wrong}")
            assert status == 422, wrong
            assert repr(wrong) in error["error"]["message"]
        api.daemon.journal = OSError("the journal x.db cannot be read: disk on fire")
        status, error = await api.ask("/api/v1/events")
        assert (status, error["error"]["code"]) == (503, "journal_unreadable")
        assert "disk on fire" in error["error"]["message"]


async def test_probes_tell_a_stuck_loop_and_an_early_one() -> None:
    async with serving(FakeDaemon(None, fakes.status(last_tick_at=None, started_at=AT))) as api:
        assert (await api.ask("/healthz"))[0] == 200
        status, error = await api.ask("/readyz")
        assert (status, error["error"]["message"]) == (503, "the first tick has not run yet")
        assert (await api.ask("/api/v1/fleet"))[0] == 503
        api.daemon.clock = AT + 31
        status, error = await api.ask("/healthz")
        assert (status, error["error"]["code"]) == (503, "loop_stuck")
        assert error["error"]["message"] == "the loop has not ticked for 31 s; it should every 1 s"
        api.daemon.how = fakes.status(last_tick_at=AT + 30)
        assert (await api.ask("/healthz"))[0] == (await api.ask("/readyz"))[0] == 200


async def test_metrics_in_both_formats() -> None:
    async with serving() as api:
        url = f"{api.server.url}/metrics"
        for accept, content_type, parse in (
            ("text/plain;version=0.0.4", "text/plain; version=0.0.4; charset=utf-8", parse_text),
            ("*/*", "text/plain; version=0.0.4; charset=utf-8", parse_text),
            (
                "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
                "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores",
                parse_openmetrics,
            ),
        ):
            async with api.session.get(url, headers={"accept": accept}) as response:
                assert response.headers["content-type"] == content_type
                names = {family.name for family in parse(await response.text())}
                assert "controlplane_replica_running_requests" in names


# -- errors and limits -----------------------------------------------------------------------------


async def test_errors_are_sentences_in_one_shape() -> None:
    async with serving() as api:
        for path, method, status, code in (
            ("/nothing", "GET", 404, "not_found"),
            ("/docs", "GET", 404, "not_found"),
            ("/healthz", "OPTIONS", 405, "method_not_allowed"),
            ("/api/v1/replicas/none", "GET", 404, "no_such_replica"),
            ("/api/v1/events?kind=a%0Ab", "GET", 422, "invalid"),
        ):
            got, error = await api.ask(path, method)
            assert (got, error["error"]["code"]) == (status, code), path
            assert set(error) == {"error"}
            assert len(error["error"]["message"]) > 10
        status, index = await api.ask("/")
        assert status == 200
        assert "/api/v1/fleet" in index


async def test_a_bug_is_an_error_without_its_insides() -> None:
    class Broken(FakeDaemon):
        def orders(self) -> Orders:
            raise RuntimeError("secret insides")

    async with serving(Broken()) as api:
        status, error = await api.ask("/api/v1/orders")
        assert (status, error["error"]["code"]) == (500, "internal")
        assert "insides" not in json.dumps(error)


async def test_security_headers_and_no_cors() -> None:
    async with serving() as api:
        for path in ("/healthz", "/nothing", "/metrics"):
            async with api.session.get(
                api.server.url + path, headers={"origin": "http://evil.test"}
            ) as response:
                headers = response.headers
                assert headers["x-content-type-options"] == "nosniff"
                assert "default-src 'none'" in headers["content-security-policy"]
                assert headers["cache-control"] == "no-store"
                assert "access-control-allow-origin" not in headers
                assert "server" not in headers


async def test_large_and_slow_bodies_are_refused(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(token_file=token_file) as api:
        status, error = await api.write("/api/v1/hold", "POST", data=b"x" * (64 * 1024 + 1))
        assert (status, error["error"]["code"]) == (413, "too_large")

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"x" * 8192

        status, error = await api.write("/api/v1/hold", "POST", data=chunks())
        assert (status, error["error"]["code"]) == (413, "too_large")

        monkeypatch.setattr(guard, "LONGEST_BODY_SECONDS", 0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(api))
        head = f"POST /api/v1/hold HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert b"408" in await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        assert api.daemon.ordered == Orders()


def port_of(api: Api) -> int:
    return int(api.server.url.rpartition(":")[2])


# -- writing ---------------------------------------------------------------------------------------


async def test_without_a_configured_token_the_api_can_only_be_read() -> None:
    async with serving() as api:
        for method, path in (("POST", "/api/v1/hold"), ("DELETE", "/api/v1/hold?by=a"), ("PUT", "/x")):
            status, error = await api.write(path, method, json=HOLD)
            assert (status, error["error"]["code"]) == (403, "read_only")
            assert "no token is configured" in error["error"]["message"]
        assert api.daemon.ordered == Orders()


async def test_only_the_right_token_writes(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(shown: bytes, token: bytes) -> bool:
        compared.append(shown)
        return hmac.compare_digest(shown, token)

    monkeypatch.setattr(guard, "same_secret", compare)
    async with serving(token_file=token_file) as api:
        for header, code in (
            (None, "token_missing"),
            ("", "token_wrong"),
            ("Bearer", "token_wrong"),
            ("Bearer wrong", "token_wrong"),
            (f"Bearer {TOKEN}x", "token_wrong"),
            (f"Bearer {TOKEN[:-1]}", "token_wrong"),
            (f"Basic {TOKEN}", "token_wrong"),
            ("Bearer t\xf6ken", "token_wrong"),
        ):
            headers = {} if header is None else {"authorization": header}
            # The body is no JSON: who may not write learns nothing about what it should be.
            status, error = await api.ask("/api/v1/hold", "POST", headers=headers, data=b"{")
            assert (status, error["error"]["code"]) == (401, code), header
            assert TOKEN not in error["error"]["message"]
        assert api.daemon.ordered == Orders()
        assert b"wrong" in compared  # each comparison takes the same time, however much is right
        status, orders = await api.write("/api/v1/hold", "POST", json=HOLD)
        assert status == 200
        assert orders["hold"] == {"since": api.daemon.clock, **HOLD}
        token_file.write_text("another-token")  # noqa: ASYNC240
        assert (await api.write("/api/v1/hold", "POST", json=HOLD))[0] == 401
        token_file.unlink()  # noqa: ASYNC240
        status, error = await api.write("/api/v1/hold", "POST", json=HOLD)
        assert (status, error["error"]["code"]) == (503, "token_unavailable")
        assert str(token_file) not in error["error"]["message"]


async def test_holds_and_overrides(token_file: Path) -> None:
    async with serving(token_file=token_file) as api:
        await api.write("/api/v1/hold", "POST", json=HOLD)
        assert api.daemon.ordered.hold == Hold(AT + 1, "ann", "deploy of chat")
        _, orders = await api.write("/api/v1/hold?by=bob", "DELETE")
        assert orders["hold"] is None
        assert api.daemon.asked == {"release": "bob"}
        _, orders = await api.write("/api/v1/overrides", "PUT", json={**OVERRIDE, "until": AT + 60})
        assert api.daemon.ordered.overrides == (
            Override("pool", "chat", "mode", "observe", "ann", "looking first", AT + 1, AT + 60),
        )
        assert orders["overrides"][0]["until"] == AT + 60
        where = "scope=pool&name=chat&setting=mode&by=bob"
        status, orders = await api.write(f"/api/v1/overrides?{where}", "DELETE")
        assert (status, orders["overrides"]) == (200, [])
        status, error = await api.write(f"/api/v1/overrides?{where}", "DELETE")
        assert (status, error["error"]["code"]) == (404, "no_such_override")


async def test_an_override_of_nothing_is_refused(token_file: Path) -> None:
    async with serving(token_file=token_file) as api:
        for scope, name in (("pool", "chatt"), ("replica", "vllm-9:8000"), ("node", "gpu-node-1")):
            order = {**OVERRIDE, "scope": scope, "name": name}
            status, error = await api.write("/api/v1/overrides", "PUT", json=order)
            assert (status, error["error"]["code"]) == (404, f"no_such_{scope}")
            assert error["error"]["message"] == f"there is no {scope} {name!r}: nothing was overridden"
        assert api.daemon.ordered == Orders()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"scope": "planet"}, "planet"),
        ({"setting": "colour"}, "colour"),
        ({"name": ""}, "name"),
        ({"by": "ann\nby: bob"}, "control characters"),
        ({"until": "soon"}, "soon"),
        ({"extra": 1}, "extra"),
        ({"reason": "x" * 501}, "reason"),
    ],
)
async def test_orders_that_mean_nothing_are_refused(
    token_file: Path, change: dict[str, object], told: str
) -> None:
    async with serving(token_file=token_file) as api:
        status, error = await api.write("/api/v1/overrides", "PUT", json={**OVERRIDE, **change})
        assert (status, error["error"]["code"]) == (422, "invalid")
        assert told in error["error"]["message"]
        assert api.daemon.ordered == Orders()


async def test_a_body_is_json_whatever_it_is_called(token_file: Path) -> None:
    async with serving(token_file=token_file) as api:
        for kind in ("application/x-www-form-urlencoded", "text/plain", "application/json"):
            headers = {"authorization": f"Bearer {TOKEN}", "content-type": kind}
            status, _ = await api.ask("/api/v1/hold", "POST", data=json.dumps(HOLD), headers=headers)
            assert status == 200, kind


async def test_bodies_that_are_no_order_are_refused(token_file: Path) -> None:
    async with serving(token_file=token_file) as api:
        for body in (b"", b"{", b"[]", b"null", b'{"reason": "x"}', b"\xff", b'{"until": NaN}'):
            status, error = await api.write("/api/v1/hold", "POST", data=body)
            assert status in (400, 422), body
            assert error["error"]["code"] == "invalid"


async def test_a_body_that_is_no_json_is_said_to_be_none(token_file: Path) -> None:
    async with serving(token_file=token_file) as api:
        _, error = await api.write("/api/v1/hold", "POST", data=b'{"reason": racks}')
        assert error["error"]["message"].startswith("the body is not JSON: ")
        assert error["error"]["message"].endswith(" (character 11)")


async def test_an_order_that_cannot_be_kept_is_said_not_to_stand(token_file: Path) -> None:
    async with serving(
        FakeDaemon(journal=OSError(28, "No space left on device")), token_file=token_file
    ) as api:
        status, error = await api.write("/api/v1/hold", "POST", json=HOLD)
        assert (status, error["error"]["code"]) == (503, "not_kept")
        assert "No space left on device" in error["error"]["message"]


# -- the stream ------------------------------------------------------------------------------------


async def read_event(content: aiohttp.StreamReader) -> tuple[str, Any]:
    """The next event; comments have the name ""."""
    lines = (await asyncio.wait_for(content.readuntil(b"\n\n"), 60)).decode().strip().split("\n")
    fields = dict(line.split(": ", 1) for line in lines)
    return fields.get("event", ""), strict(fields["data"]) if "data" in fields else fields


async def test_the_stream_tells_each_tick() -> None:
    async with serving() as api, api.session.get(f"{api.server.url}/api/v1/stream") as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        kind, summary = await read_event(response.content)
        assert kind == "snapshot"
        assert summary["tick"] == 7
        assert summary["pools"][0]["running"]["value"] == 12
        assert summary["pools"][0]["goodput"]["ratio"] == {"low": 0.8, "high": 0.96}
        api.daemon.seen = fleet(tick=8, events=(fakes.event(),))
        api.daemon.tick(fakes.decision())
        told = [await read_event(response.content) for _ in range(3)]
        assert [kind for kind, _ in told] == ["snapshot", "decision", "event"]
        assert told[0][1]["tick"] == 8
        assert told[1][1]["reason"] == "goodput-low"
        assert told[2][1]["kind"] == "restart"


async def test_the_stream_ends_with_a_word_when_the_daemon_stops() -> None:
    async with serving() as api:
        response = await api.session.get(f"{api.server.url}/api/v1/stream")
        await read_event(response.content)
        await api.server.stop()
        assert await read_event(response.content) == ("end", {"reason": "the daemon stops"})
        assert await response.content.read() == b""
        assert api.daemon.listeners == []


async def test_a_heartbeat_keeps_the_line() -> None:
    stream = streaming.Stream()
    frames = stream.frames(heartbeat_seconds=0.001)
    assert await anext(frames) == b": heartbeat\n\n"
    stream.put(b"x")
    assert await anext(frames) == b"x"


async def test_a_slow_listener_is_dropped_with_a_last_word_and_nobody_waits() -> None:
    daemon = FakeDaemon()
    streams = streaming.Streams(daemon)
    slow, quick = streams.open(), streams.open()
    assert slow is not None
    assert quick is not None
    heard = quick.frames()
    for _ in range(streaming.MOST_QUEUED_TICKS + 5):
        assert b"event: snapshot" in await anext(heard)
        daemon.tick()
    rest = [frame async for frame in slow.frames()]
    assert [frame.split(b"\n")[0] for frame in rest] == [b"event: dropped"]
    assert streams.dropped == 1


async def test_a_listener_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "LONGEST_SEND_SECONDS", 0.2)
    many = fleet(*[replica(f"vllm-{i}", f"pool-{i}") for i in range(200)])  # some 100 kB a tick
    async with serving(FakeDaemon(many)) as api:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, ("127.0.0.1", port_of(api)))
            await loop.sock_sendall(deaf, b"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
            for _ in range(500):
                api.daemon.tick()
                await asyncio.sleep(0.02)
                _, page = await api.ask("/metrics")
                if "controlplane_dropped_streams_total 1.0" in page:
                    break
            assert "controlplane_open_streams 0.0" in page
        status, _ = await api.ask("/healthz")
        assert status == 200


async def test_there_are_only_so_many_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "MOST_STREAMS", 2)
    async with serving() as api:
        url = f"{api.server.url}/api/v1/stream"
        first = await api.session.get(url)
        await read_event(first.content)
        second = await api.session.get(url)
        await read_event(second.content)
        status, error = await api.ask("/api/v1/stream")
        assert (status, error["error"]["code"]) == (503, "too_many_streams")
        first.close()
        async with asyncio.timeout(60):
            while "controlplane_open_streams 1.0" not in (await api.ask("/metrics"))[1]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await api.session.get(url)).status == 200


# -- start and stop --------------------------------------------------------------------------------


async def test_a_port_in_use_is_one_sentence() -> None:
    async with serving() as api:
        second = ApiServer(FakeDaemon(), ApiSettings(listen=f"127.0.0.1:{port_of(api)}"))
        with pytest.raises(ApiStartError, match=rf"cannot listen on 127.0.0.1:{port_of(api)}: .* in use"):
            await second.start()
        await second.stop()


async def test_an_unknown_host_is_one_sentence() -> None:
    server = ApiServer(FakeDaemon(), ApiSettings(listen="no-such-host.invalid:9090"))
    with pytest.raises(ApiStartError, match=r"no-such-host\.invalid:9090"):
        await server.start()


async def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(files["tls_cert"])
    issued.private_key_pem.write_to_path(files["tls_key"])
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    async with serving(**files) as api:
        assert api.server.url.startswith("https://127.0.0.1:")
        assert (await api.ask("/healthz", ssl=trust))[0] == 200


async def test_signals_stay_the_daemon_s() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    async with serving():
        assert {number: signal.getsignal(number) for number in before} == before


async def test_tls_files_that_are_none_are_one_sentence(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("tls_cert", "tls_key")}
    for path in files.values():
        path.write_text("not PEM")
    server = ApiServer(FakeDaemon(), ApiSettings(listen="127.0.0.1:0", **files))
    with pytest.raises(ApiStartError, match="tls_cert"):
        await server.start()


async def test_a_token_that_is_not_there_is_told_at_start(tmp_path: Path) -> None:
    server = ApiServer(FakeDaemon(), ApiSettings(listen="127.0.0.1:0", token_file=tmp_path / "none"))
    with pytest.raises(TokenError, match=r"token_file .*none cannot be read"):
        await server.start()


async def test_it_starts_again_on_the_port_it_had() -> None:
    async with serving() as api:
        port = port_of(api)
    async with serving(FakeDaemon()) as again:
        assert again.server.url != ""
    server = ApiServer(FakeDaemon(), ApiSettings(listen=f"127.0.0.1:{port}"))
    await server.start()
    await server.stop()


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [("127.0.0.1:9090", "127.0.0.1", 9090), ("[::1]:0", "::1", 0), ("localhost:80", "localhost", 80)],
)
def test_addresses(listen: str, host: str, port: int) -> None:
    settings = ApiSettings(listen=listen)
    assert (settings.host, settings.port) == (host, port)


@pytest.mark.parametrize("listen", ["9090", ":9090", "127.0.0.1", "::1:9090", "h:70000", "h:x", "h:²"])
def test_what_is_no_address_is_refused_with_its_value(listen: str) -> None:
    with pytest.raises(ValidationError, match="HOST:PORT"):
        ApiSettings(listen=listen)


def test_impossible_settings_are_refused_with_both_values() -> None:
    with pytest.raises(ValidationError, match=r"token_file \(a\) and token_env \(B\)"):
        ApiSettings(token_file=Path("a"), token_env="B")
    with pytest.raises(ValidationError, match=r"tls_cert \(got c\) and tls_key \(got None\)"):
        ApiSettings(tls_cert=Path("c"))


def test_a_token_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ApiSettings(token_env="CONTROLPLANE_TOKEN")
    monkeypatch.setenv("CONTROLPLANE_TOKEN", f" {TOKEN}\n")
    assert settings.token() == TOKEN.encode()
    for wrong in ("", "  ", "two words", "t\xf6ken", "x" * 5000):
        monkeypatch.setenv("CONTROLPLANE_TOKEN", wrong)
        with pytest.raises(TokenError, match="token_env CONTROLPLANE_TOKEN"):
            settings.token()
    monkeypatch.delenv("CONTROLPLANE_TOKEN")
    with pytest.raises(TokenError, match="token_env CONTROLPLANE_TOKEN is empty"):
        settings.token()


# -- clients that hold on ----------------------------------------------------------------------------


async def half_a_request(api: Api) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(api))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    await writer.drain()
    return reader, writer


async def test_half_sent_requests_do_not_keep_a_probe_out(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as api:
        held = [await half_a_request(api) for _ in range(connection.MOST_CONNECTIONS + 8)]
        for _ in range(3):
            status, _ = await api.ask("/healthz")
            assert status == 200
        assert await asyncio.wait_for(held[0][0].read(), 60) == b"", "the oldest made room"
        for _, writer in held:
            writer.close()
    assert caplog.records == []


async def test_a_request_has_some_seconds_to_be_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LONGEST_HEAD_SECONDS", 0.2)
    async with serving() as api:
        for first in (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(api))
            writer.write(first + b"GET /healthz HT")
            answer = await asyncio.wait_for(reader.read(), 60)  # ends where the connection is given up
            assert answer.startswith(b"HTTP/1.1 200") == bool(first)
            writer.close()


async def test_odd_requests_leave_no_line_each(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as api:
        for odd in (b"\x16\x03\x01 hello\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(api))
            writer.write(odd)
            assert b" 400 " in await asyncio.wait_for(reader.read(), 60)
            writer.close()
    assert caplog.records == []


async def test_head_is_get_without_a_body() -> None:
    async with serving() as api:
        for path in ("/", "/healthz", "/metrics", "/api/v1/fleet"):
            async with api.session.head(api.server.url + path) as answer:
                assert (answer.status, await answer.read()) == (200, b""), path
                assert int(answer.headers["content-length"]) > 0
        async with api.session.head(api.server.url + "/nowhere") as answer:
            assert answer.status == 404


# -- whatever comes --------------------------------------------------------------------------------

_OPENAPI = create_app(FakeDaemon(), ApiSettings()).openapi()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seen=fakes.fleets, how=fakes.statuses, orders=fakes.orders)
def test_any_snapshot_gives_valid_json_of_the_documented_shape(
    seen: FleetSnapshot, how: Any, orders: Orders
) -> None:
    shown: list[tuple[str, shapes.Answer]] = [
        ("Fleet", answers.fleet_of(seen, orders, how, AT)),
        ("Orders", answers.orders_of(orders)),
    ]
    shown += [("Replica", answers.replica_of(one, fakes.status(), AT)) for one in seen.replicas.values()]
    for name, answer in shown:
        schema = closed({"$ref": f"#/components/schemas/{name}", "components": _OPENAPI["components"]})
        jsonschema.Draft202012Validator(schema).validate(strict(answer.model_dump_json()))
    strict(answers.summary_of(seen, AT).model_dump_json())


@settings(max_examples=100, deadline=None)
@given(decision=fakes.decisions, event=fakes.events)
def test_any_record_gives_valid_json(decision: Decision, event: Event) -> None:
    strict(shapes.Decision.model_validate(decision).model_dump_json())
    strict(shapes.Event.model_validate(event).model_dump_json())
