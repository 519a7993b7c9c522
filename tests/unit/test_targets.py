"""Target discovery: static lists, files that break, DNS that is away; with clocks in the test's hand."""

import asyncio
import json
import socket
from collections.abc import Mapping
from pathlib import Path

import dns.asyncresolver
import dns.message
import dns.rcode
import dns.rrset
import pytest

from controlplane.signals.decision import Event
from controlplane.signals.samples import Target
from controlplane.sources import dns_sd
from controlplane.sources import targets as module
from controlplane.sources.dns_sd import RESOLVE_SECONDS, SystemResolver
from controlplane.sources.file_sd import LIMIT_BYTES
from controlplane.sources.last_good import GRACE_SECONDS
from controlplane.sources.settings import ScrapeSettings, TargetSettings
from controlplane.sources.targets import Discovery

NOON = 1_764_000_000.0


class FakeResolver:
    """Answers what it is told; an exception is raised."""

    def __init__(self) -> None:
        self.answer: object = []
        self.asked: list[str] = []

    async def addresses(self, name: str, record: str) -> list[str]:
        self.asked.append(f"{record} {name}")
        return self._answer()

    async def services(self, name: str) -> list[tuple[str, int]]:
        self.asked.append(f"SRV {name}")
        return self._answer()

    def _answer(self) -> list:
        if isinstance(self.answer, BaseException):
            raise self.answer
        assert isinstance(self.answer, list)
        return self.answer


class World:
    """A discovery with its clocks; `look` moves them on."""

    def __init__(self, pools: Mapping[str, object]) -> None:
        self.resolver = FakeResolver()
        self.now = 1000.0
        self.looks = 0
        settings = {name: TargetSettings.model_validate(pool) for name, pool in pools.items()}
        self.discovery = Discovery(settings, ScrapeSettings(), self.resolver)

    async def look(self, after: float = 5.0) -> list[str]:
        """The kinds of the events of one look."""
        return [event.kind for event in await self.events(after)]

    async def events(self, after: float = 5.0) -> tuple[Event, ...]:
        self.now += after
        before = self.discovery.targets
        found = await self.discovery.look(self.now, NOON + self.now)
        news = self.discovery.targets != before or self.looks == 0
        assert (found.targets is not None) == news, "the first list is told also when it is empty"
        self.looks += 1
        assert all(event.at == NOON + self.now and "\n" not in event.sentence for event in found.events)
        return found.events

    @property
    def names(self) -> list[str]:
        return [target.name for target in self.discovery.targets]

    @property
    def urls(self) -> list[str]:
        return [target.url for target in self.discovery.targets]


def write(path: Path, content: object) -> None:
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def group(*addresses: str, **labels: str) -> dict[str, object]:
    return {"targets": list(addresses), "labels": labels}


# --- static


async def test_static_targets_come_at_the_first_look_and_never_change() -> None:
    world = World(
        {
            "chat": {"static": ["10.0.0.8:8000", "https://a/m", "10.0.0.7:8000"]},
            "code": {"static": ["10.0.1.1:8000"], "scheme": "https"},
            "small": {"static": ["10.0.2.1:11434"], "engine": "ollama"},
        }
    )
    assert await world.look() == []
    assert world.discovery.targets == (
        Target("10.0.0.8:8000", "chat", "http://10.0.0.8:8000/metrics"),
        Target("a:443", "chat", "https://a/m"),
        Target("10.0.0.7:8000", "chat", "http://10.0.0.7:8000/metrics"),
        Target("10.0.1.1:8000", "code", "https://10.0.1.1:8000/metrics"),
        Target("10.0.2.1:11434", "small", "http://10.0.2.1:11434/api/ps", "ollama"),
    )
    assert await world.look() == []


async def test_names_are_unique_by_what_differs() -> None:
    urls = [
        "http://a:8000",
        "http://a:8000/rank1/metrics",
        "https://a:8000/rank1/metrics",
        "http://A:8000/metrics",
    ]
    world = World({"chat": {"static": urls}})
    await world.look()
    assert world.names == ["a:8000", "a:8000/rank1/metrics", "https://a:8000/rank1/metrics"]


async def test_no_name_and_no_event_has_the_query_of_a_url() -> None:
    urls = ["http://a:8000/m?token=s3cret", "http://a:8000/m?token=0ther", "http://a:8000/m?token=third"]
    world = World({"chat": {"static": urls}, "code": {"static": urls[:1]}})
    (event,) = await world.events()
    assert world.names == ["a:8000", "a:8000/m", "http://a:8000/m"]
    assert event.target == "http://a:8000/m"
    assert "s3cret" not in event.sentence
    world = World({"chat": {"static": [*urls, "http://a:8000/m?x", "http://a:8000/m?y"]}})
    await world.look()
    assert world.names[3:] == ["http://a:8000/m (2)", "http://a:8000/m (3)"]


async def test_an_engine_in_two_pools_counts_in_the_first_and_is_told_once() -> None:
    world = World({"chat": {"static": ["a:8000"]}, "code": {"static": ["http://a:8000/metrics", "b:8000"]}})
    (event,) = await world.events()
    assert (event.kind, event.target) == ("target-in-two-pools", "http://a:8000/metrics")
    assert "chat and code" in event.sentence
    assert [(target.name, target.pool) for target in world.discovery.targets] == [
        ("a:8000", "chat"),
        ("b:8000", "code"),
    ]
    assert await world.look() == []


async def test_over_ten_thousand_targets_the_rest_is_left_out_and_that_is_told(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    write(file, [group(*(f"10.{i // 65536}.{i // 256 % 256}.{i % 256}:8000" for i in range(10_001)))])
    world = World({"chat": {"file_sd": [str(file)]}})
    (event,) = await world.events()
    assert event.kind == "too-many-targets"
    assert "10001" in event.sentence
    assert len(world.discovery.targets) == module.LIMIT == 10_000
    assert await world.look() == []
    assert len(set(world.names)) == module.LIMIT


# --- files


@pytest.mark.parametrize("suffix", ["json", "yml", "yaml"])
async def test_a_file_is_read_again_when_it_changes(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"t.{suffix}"
    write(file, [group("a:8000", "b:8000")])
    world = World({"chat": {"file_sd": [str(tmp_path / "*") + f".{suffix}"]}})
    assert await world.look() == []
    assert world.names == ["a:8000", "b:8000"]
    write(file, [group("a:8000", "c:8000")])  # same size, maybe the same tick of the file system's clock
    assert await world.look() == []
    assert world.names == ["a:8000", "c:8000"]


async def test_labels_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    write(
        file,
        """
        - targets: ["a:8000"]
          labels: {__scheme__: https, __metrics_path__: /m, shard: 1}
        - targets: [b]
          labels: {pool: code, model: acme/chat-8b}
        - targets: ["[::1]:8000"]
        """,
    )
    world = World({"chat": {"file_sd": [str(file)]}})
    assert await world.look() == []
    assert world.discovery.targets == (
        Target("a:8000", "chat", "https://a:8000/m"),
        Target("b:80", "code", "http://b/metrics"),
        Target("[::1]:8000", "chat", "http://[::1]:8000/metrics"),
    )


BROKEN = {
    "half written": '[{"targets": ["a:8000", "b:80',
    "no list": '{"targets": ["a:8000"]}',
    "not text": '[{"targets": [1]}]',
    "label no text": '[{"targets": ["a:1"], "labels": {"shard": 1}}]',
    "a URL": '[{"targets": ["http://a:8000/metrics"]}]',
    "credentials": '[{"targets": ["u:pw123@a:8000"]}]',
    "a URL with secrets": '[{"targets": ["http://u:pw123@a:8000/m?token=pw123#pw123"]}]',
    "a password with a slash": '[{"targets": ["u:pw123/x@a:8000"]}]',
    "a password with a question": '[{"targets": ["u:pw123?x@a:8000"]}]',
    "a path that is none": '[{"targets": ["a:1"], "labels": {"__scheme__": "gopher"}}]',
    "too deep": "[" * 100_000,
    "cut to nothing": "",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
async def test_a_broken_file_keeps_the_last_good_list_and_is_told_once(tmp_path: Path, content: str) -> None:
    broken, other = tmp_path / "a.json", tmp_path / "b.json"
    write(broken, [group("a:8000", "b:8000")])
    write(other, [group("c:8000")])
    world = World({"chat": {"file_sd": [str(tmp_path / "*.json")]}})
    assert await world.look() == []
    write(broken, content)
    (event,) = await world.events()
    assert (event.kind, event.target, event.severity) == ("discovery-failing", str(broken), "warning")
    assert "is broken or half written" in event.sentence
    assert "the last 2 targets kept" in event.sentence
    assert len(event.sentence) < 600
    assert "pw123" not in event.sentence
    for _ in range(3):
        assert await world.look(3600.0) == []
    write(other, [group("d:8000")])
    assert await world.look() == []
    assert world.names == ["a:8000", "b:8000", "d:8000"]
    write(broken, [group("a:8000", "b:8000", "e:8000")])
    assert await world.look() == ["discovery-recovered"]
    assert world.names == ["a:8000", "b:8000", "e:8000", "d:8000"]


@pytest.mark.parametrize(
    "content",
    [
        "- targets: [a:8000\n",
        "a: b: c",
        "\t- x",
        "- &a [*a]",
        "!!python/object:os.system {}",
        "- " * 20_000,
        "\x00",
    ],
)
async def test_a_broken_yaml_file_is_only_trouble(tmp_path: Path, content: str) -> None:
    file = tmp_path / "t.yaml"
    write(file, content)
    world = World({"chat": {"file_sd": [str(file)]}})
    assert await world.look() == ["discovery-failing"]
    assert world.names == []


async def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    write(file, json.dumps([group("a:8000")]) + " " * LIMIT_BYTES)
    world = World({"chat": {"file_sd": [str(file)]}})
    (event,) = await world.events()
    assert f"is over {LIMIT_BYTES} bytes" in event.sentence


async def test_a_removed_file_is_believed_after_the_grace_time(tmp_path: Path) -> None:
    gone, stays = tmp_path / "a.json", tmp_path / "b.json"
    write(gone, [group("a:8000")])
    write(stays, [group("b:8000")])
    world = World({"chat": {"file_sd": [str(tmp_path / "*.json")]}})
    await world.look()
    gone.unlink()
    (event,) = await world.events()
    assert (event.kind, event.target) == ("discovery-empty", str(gone))
    assert "the last 1 target kept for 300 s" in event.sentence
    assert await world.look(GRACE_SECONDS - 1) == []
    assert world.names == ["a:8000", "b:8000"]
    assert await world.look(1) == ["targets-gone"]
    assert world.names == ["b:8000"]
    assert await world.look() == []
    write(gone, [group("a:8000")])
    await world.look()
    assert world.names == ["a:8000", "b:8000"]


async def test_a_file_that_comes_back_in_the_grace_time_costs_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write(file, [group("a:8000")])
    world = World({"chat": {"file_sd": [str(file)]}})
    await world.look()
    for content in ([], [group()]):
        write(file, content)
        assert await world.look() == ["discovery-empty"]
        assert await world.look(GRACE_SECONDS / 2) == []
        write(file, [group("a:8000")])
        assert await world.look() == ["discovery-recovered"]
        assert await world.look(GRACE_SECONDS) == []
    assert world.names == ["a:8000"]


async def test_an_unreadable_answer_starts_the_grace_time_anew(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write(file, [group("a:8000")])
    world = World({"chat": {"file_sd": [str(file)]}})
    await world.look()
    write(file, [])
    assert await world.look() == ["discovery-empty"]
    write(file, "[")
    assert await world.look(GRACE_SECONDS) == ["discovery-failing"]
    write(file, [])
    assert await world.look() == ["discovery-empty"]
    assert world.names == ["a:8000"]


async def test_a_pattern_without_a_file_is_told_once(tmp_path: Path) -> None:
    world = World({"chat": {"file_sd": [str(tmp_path / "*.json")]}})
    (event,) = await world.events()
    assert event.sentence == f"{tmp_path}/*.json matches no file"
    assert await world.look() == []
    write(tmp_path / "a.json", [group("a:8000")])
    assert await world.look() == []
    assert world.names == ["a:8000"]


async def test_files_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    world = World({"chat": {"file_sd": [str(tmp_path / "*.json")]}})
    for i in range(20):
        file = tmp_path / f"{i}.json"
        write(file, [group("a:8000")])
        await world.look()
        file.unlink()
        await world.look(GRACE_SECONDS)
        await world.look(GRACE_SECONDS)
    pool = world.discovery._pools["chat"]
    assert pool._places == {}
    assert pool._files is not None
    assert pool._files._read == {}


async def test_a_name_stays_while_its_target_is_there(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    first, second = group("a:8000"), group("a:8000", __metrics_path__="/two")
    write(file, [first, second])
    world = World({"chat": {"file_sd": [str(file)]}})
    await world.look()
    assert world.names == ["a:8000", "a:8000/two"]
    write(file, [second, first])
    await world.look()
    assert world.names == ["a:8000/two", "a:8000"]
    write(file, [second])
    await world.look()
    assert world.names == ["a:8000/two"]


# --- DNS


async def test_addresses_become_targets_in_a_stable_order() -> None:
    world = World({"chat": {"dns": "vllm.chat:8000"}})
    world.resolver.answer = ["10.0.0.9", "10.0.0.7", "10.0.0.9"]
    assert await world.look() == []
    assert world.names == ["10.0.0.7:8000", "10.0.0.9:8000"]
    world.resolver.answer = ["10.0.0.7", "10.0.0.9"]
    assert await world.look(RESOLVE_SECONDS) == []
    assert world.names == ["10.0.0.7:8000", "10.0.0.9:8000"]
    assert world.resolver.asked == ["A vllm.chat"] * 2


async def test_ipv6_and_srv_records() -> None:
    world = World({"six": {"dns": "vllm:8000", "record": "AAAA"}})
    world.resolver.answer = ["2001:db8::7"]
    await world.look()
    assert world.urls == ["http://[2001:db8::7]:8000/metrics"]
    world = World({"srv": {"dns": "_http._tcp.vllm", "record": "SRV", "scheme": "https"}})
    world.resolver.answer = [("vllm-1.chat", 8001), ("vllm-0.chat", 8000)]
    await world.look()
    assert world.urls == ["https://vllm-0.chat:8000/metrics", "https://vllm-1.chat:8001/metrics"]
    assert world.resolver.asked == ["SRV _http._tcp.vllm"]


async def test_a_name_is_resolved_once_in_its_interval_whatever_the_clock_does() -> None:
    world = World({"chat": {"dns": "vllm:8000"}})
    world.resolver.answer = ["10.0.0.7"]
    for _ in range(int(6 * RESOLVE_SECONDS)):
        await world.look(1.0)
    assert len(world.resolver.asked) == 6
    await world.look(-3600.0)
    await world.look(RESOLVE_SECONDS)
    assert len(world.resolver.asked) == 8


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), "temporary failure"),
        (OSError(None, "all name servers failed"), "all name servers failed"),
        (TimeoutError(), "not resolved within 5 s"),
    ],
    ids=["gaierror", "servers", "timeout"],
)
async def test_a_name_server_that_is_away_keeps_the_list_for_ever(error: OSError, words: str) -> None:
    world = World({"chat": {"dns": "vllm:8000"}})
    world.resolver.answer = ["10.0.0.7", "10.0.0.8"]
    await world.look()
    world.resolver.answer = error
    (event,) = await world.events(RESOLVE_SECONDS)
    assert (event.kind, event.target) == ("discovery-failing", "vllm:8000 (A)")
    assert words in event.sentence
    assert "the last 2 targets kept" in event.sentence
    for _ in range(5):
        assert await world.look(GRACE_SECONDS) == []
    assert len(world.names) == 2
    world.resolver.answer = ["10.0.0.8"]
    assert await world.look(RESOLVE_SECONDS) == ["discovery-recovered"]
    assert world.names == ["10.0.0.8:8000"]


async def test_an_empty_answer_is_believed_only_after_the_grace_time() -> None:
    world = World({"chat": {"dns": "vllm:8000"}})
    world.resolver.answer = ["10.0.0.7"]
    await world.look()
    world.resolver.answer = []
    assert await world.look(RESOLVE_SECONDS) == ["discovery-empty"]
    assert await world.look(GRACE_SECONDS - 1) == []
    assert world.names == ["10.0.0.7:8000"]
    assert await world.look(RESOLVE_SECONDS) == ["targets-gone"]
    assert world.names == []
    assert await world.look(RESOLVE_SECONDS) == []
    world.resolver.answer = ["10.0.0.9"]
    assert await world.look(RESOLVE_SECONDS) == ["discovery-recovered"]
    assert world.names == ["10.0.0.9:8000"]


async def test_an_answer_that_is_no_host_is_trouble() -> None:
    world = World({"chat": {"dns": "_x._tcp.vllm", "record": "SRV"}})
    world.resolver.answer = [("a b", 8000)]
    assert await world.look() == ["discovery-failing"]


async def test_the_resolver_of_this_machine() -> None:
    resolver = SystemResolver()
    assert await resolver.addresses("127.0.0.1", "A") == ["127.0.0.1"]
    assert await resolver.addresses("localhost", "A") == ["127.0.0.1"]


async def test_an_srv_question_to_a_name_server_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server of our own, so that dnspython is asked for real: records, no name, no answer."""
    reply: list[str] | None = ["0 0 8000 vllm-0.chat.", "0 0 8001 vllm-1.chat."]

    class NameServer(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, peer: object) -> None:
            query = dns.message.from_wire(data)
            response = dns.message.make_response(query)
            if reply is None:
                response.set_rcode(dns.rcode.SERVFAIL)
            elif reply:
                name = query.question[0].name
                response.answer.append(dns.rrset.from_text_list(name, 1, "IN", "SRV", reply))
            else:
                response.set_rcode(dns.rcode.NXDOMAIN)
            self.transport.sendto(response.to_wire(), peer)  # type: ignore[attr-defined]

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        NameServer, local_addr=("127.0.0.1", 0)
    )
    port = transport.get_extra_info("sockname")[1]

    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = ["127.0.0.1"]
    resolver.port = port
    resolver.lifetime = 60.0
    monkeypatch.setattr(dns.asyncresolver, "Resolver", lambda: resolver)
    monkeypatch.setattr(dns_sd, "_TIMEOUT_SECONDS", 60.0)
    try:
        world = World({"chat": {"dns": "_http._tcp.vllm", "record": "SRV"}})
        world.discovery = Discovery(
            {"chat": TargetSettings(dns="_http._tcp.vllm", record="SRV")}, ScrapeSettings(), SystemResolver()
        )
        assert await world.look() == []
        assert world.names == ["vllm-0.chat:8000", "vllm-1.chat:8001"]
        reply = []
        assert await world.look(RESOLVE_SECONDS) == ["discovery-empty"]
        reply = None
        assert await world.look(RESOLVE_SECONDS) == ["discovery-failing"]
        reply = ["0 0 0 ."]  # decidedly not available
        assert await world.look(RESOLVE_SECONDS) == ["discovery-empty"]
        assert world.names == ["vllm-0.chat:8000", "vllm-1.chat:8001"]
    finally:
        transport.close()
