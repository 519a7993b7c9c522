"""The gateway as a process, before simulated engines: the SDKs of OpenAI and Anthropic, workers, kill -9."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import trustme
from processes import CONTROLPLANE, config, free_ports, running, until

TOKEN = "steer"
MODEL = "h100-8b"
REQUESTS = "controlplane_gateway_requests_total"


def fetch(url: str, token: str = "") -> bytes:
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=30) as response:
        body: bytes = response.read()
    return body


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A gateway before two simulated engines: its public and its control address."""
    folder = tmp_path_factory.mktemp("fleet")
    listen, control, first, second = free_ports(4)
    engines = (
        "simulate",
        "serve",
        "--engine",
        MODEL,
        "--port",
        str(first),
        "--replicas",
        "2",
        "--speed",
        "20",
    )
    path = config(folder, listen, control, [first, second], "  admission: {mode: enforce}")
    public = f"http://127.0.0.1:{listen}"
    with (
        running(folder / "engines.log", *engines, url=f"http://127.0.0.1:{second}/health"),
        running(
            folder / "gateway.log", "gateway", "-c", str(path), url=f"{public}/ready", CONTROL_TOKEN=TOKEN
        ),
    ):
        yield public, f"http://127.0.0.1:{control}"


def local(port: int, path: str) -> str:
    return f"http://127.0.0.1:{port}{path}"


def page(url: str) -> str:
    """Empty where a worker that dies has taken the connection with it."""
    with contextlib.suppress(OSError):
        return fetch(url).decode()
    return ""


def says(url: str, *samples: str) -> bool:
    """Whether the metrics page has these lines, but for what all names begin with."""
    return {f"controlplane_gateway_{sample}" for sample in samples} <= set(page(url).splitlines())


def put(url: str, document: dict[str, Any]) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(url, json.dumps(document).encode(), headers, method="PUT")
    with urllib.request.urlopen(request, timeout=30):
        pass


@pytest.fixture
def client(fleet: tuple[str, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet[0]}/v1", api_key="sk-x", max_retries=0) as made:
        yield made


MESSAGES: Any = [{"role": "user", "content": "Say something."}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        },
    }
]


def test_openai_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_openai_stream_has_no_usage_unless_asked_for(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8, stream=True))
    assert all(chunk.choices for chunk in chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    options: Any = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=8, stream=True, stream_options=options
        )
    )
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8


def test_openai_tools_completions_models(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8, tools=TOOLS)
    assert answer.choices[0].finish_reason
    text = client.completions.create(model=MODEL, prompt="Once", max_tokens=4, n=2)
    assert len(text.choices) == 2
    assert [model.id for model in client.models.list().data] == [MODEL]


def test_openai_errors_are_the_ones_that_it_knows(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="none", messages=MESSAGES)
    assert unknown.value.code == "unknown_model"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=10_000_000)


def test_anthropic_errors_are_the_ones_that_it_knows(fleet: tuple[str, str]) -> None:
    with anthropic.Anthropic(base_url=fleet[0], api_key="sk-x", max_retries=0) as claude:
        with pytest.raises(anthropic.NotFoundError):
            claude.messages.create(model="none", max_tokens=4, messages=MESSAGES)
        with pytest.raises(anthropic.APIStatusError) as simulated:
            # The simulator has no /v1/messages; what it says comes through.
            claude.messages.create(model=MODEL, max_tokens=4, messages=MESSAGES)
    assert simulated.value.status_code in (404, 405)


def test_the_daemon_sees_what_became_of_requests(client: openai.OpenAI, fleet: tuple[str, str]) -> None:
    began = time.time()
    client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8)
    time.sleep(1.2)
    windows = json.loads(fetch(f"{fleet[1]}/control/v1/outcomes?after={began - 1}", TOKEN))
    assert sum(window["finished"] for window in windows) >= 1


def test_kill_9_of_an_engine_in_the_middle_of_streams(tmp_path: Path) -> None:
    listen, control, *engines = free_ports(4)
    doomed, other = engines
    path = config(tmp_path, listen, control, engines, "  admission: {retries: {least: 50}}")
    serve = ("simulate", "serve", "--engine", MODEL)
    begun: list[int] = []
    ends: list[str] = []

    def stream(number: int) -> None:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{listen}/v1", api_key="x", max_retries=0) as client:
            prompt: Any = [{"role": "user", "content": f"Question {number}"}]
            try:
                chunks = client.chat.completions.create(
                    model=MODEL, messages=prompt, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
                )
                for index, _ in enumerate(chunks):
                    if index == 0:
                        begun.append(number)
            except openai.APIError as error:
                ends.append(f"{type(error).__name__} {error.code}")
            else:
                ends.append("whole")

    with (
        running(tmp_path / "a.log", *serve, "--port", str(doomed), url=local(doomed, "/health")) as engine,
        running(tmp_path / "b.log", *serve, "--port", str(other), url=local(other, "/health")),
        running(
            *(tmp_path / "g.log", "gateway", "-c", str(path)),
            url=local(listen, "/ready"),
            CONTROL_TOKEN=TOKEN,
        ),
    ):
        both_in = [
            f'replica_rotation{{pool="chat",replica="127.0.0.1:{p}",rotation="in"}} 1.0' for p in engines
        ]
        until("both in rotation", lambda: says(local(control, "/metrics"), *both_in))
        for port in engines:
            slow_down(port, 20.0)  # an answer takes a minute
        threads = [threading.Thread(target=stream, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        until("the middle of all streams", lambda: len(begun) == 16)
        engine.kill()
        slow_down(other, 1.0)
        for number in range(16, 20):  # new ones go to the other engine
            stream(number)
        for thread in threads:
            thread.join(60)
    assert len(ends) == 20
    assert ends[-1] == "whole"
    broken = [end for end in ends if end != "whole"]
    assert 0 < len(broken) < 16
    assert set(broken) == {"APIError upstream_cut"}


def slow_down(port: int, factor: float) -> None:
    """A simulated engine takes so many times as long from now on."""
    body, headers = json.dumps({"slow_factor": factor}).encode(), {"content-type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(local(port, "/sim/faults"), body, headers), timeout=30
    ):
        pass


def test_two_workers_are_one_gateway(tmp_path: Path) -> None:
    listen, control, engine = free_ports(3)
    path = config(tmp_path, listen, control, [engine], "  admission: {mode: enforce}")
    serve = ("simulate", "serve", "--engine", MODEL, "--speed", "20", "--port", str(engine))
    public, steering = f"http://127.0.0.1:{listen}", f"http://127.0.0.1:{control}"
    with (
        running(tmp_path / "e.log", *serve, url=f"http://127.0.0.1:{engine}/health"),
        running(
            tmp_path / "g.log",
            *("gateway", "-c", str(path), "--workers", "2"),
            url=f"{public}/ready",
            CONTROL_TOKEN=TOKEN,
        ) as process,
    ):
        state, metrics = f"{steering}/control/v1/state", f"{steering}/metrics"
        ready = set()

        def both_are_ready() -> bool:
            told = json.loads(fetch(state, TOKEN))  # by whichever has accepted the connection
            if [replica["rotation"] for replica in told["status"]["replicas"].values()] == ["in"]:
                ready.add(told["worker"])
            return len(ready) == 2

        until("two ready workers", both_are_ready)
        began = time.time()
        for number in range(20):
            with openai.OpenAI(base_url=f"{public}/v1", api_key="x") as client:
                prompt: Any = [{"role": "user", "content": f"{number}"}]
                client.chat.completions.create(model=MODEL, messages=prompt, max_tokens=4)

        # Both tell what is asked of one of them; one that does not answer in time is left out of that answer.
        def requests() -> float:
            counted = [line for line in page(metrics).splitlines() if line.startswith(REQUESTS)]
            return sum(float(line.rsplit(" ", 1)[1]) for line in counted)

        def finished() -> tuple[set[str], int]:
            windows = json.loads(fetch(f"{steering}/control/v1/outcomes?after={began - 1}", TOKEN))
            return {window["gateway"] for window in windows}, sum(window["finished"] for window in windows)

        until("20 requests", lambda: requests() == 20)
        until("windows of both", lambda: finished() == ({"gw/0", "gw/1"}, 20))
        until("a page of both", lambda: says(metrics, "workers 2.0", "share_ratio 1.0"))
        order = {
            "term": 1,
            "version": 0,
            "sent_at": time.time(),
            "expires_at": time.time() + 600,
            "replicas": [{"name": "e", "pool": "chat", "url": f"http://127.0.0.1:{engine}", "limit": 8}],
            "share": 0.5,
        }
        limit = 'replica_limit_sequences{pool="chat",replica="e"} 4.0'

        def both_obey() -> bool:
            order["version"] += 1
            put(state, order)
            return says(metrics, "workers 2.0", "share_ratio 0.5", limit)

        until("two workers that obey", both_obey)
        # A worker that dies is started again.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(int(children[0]), signal.SIGKILL)
        until("a worker less", lambda: not Path("/proc", children[0]).exists())
        until("two workers again", lambda: says(metrics, "workers 2.0"))
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()  # workers do not outlive who watches over them
        until("the end of its workers", lambda: not any(Path("/proc", child).exists() for child in children))
    assert (tmp_path / "g.log").read_text().count("msg=stopped") == 2


def test_workers_stop_in_order_on_a_signal(tmp_path: Path) -> None:
    listen, control = free_ports(2)
    path = config(tmp_path, listen, control, [1])
    command = ("gateway", "-c", str(path), "--workers", "2")
    log = tmp_path / "g.log"
    with running(log, *command, url=local(listen, "/health"), CONTROL_TOKEN=TOKEN) as process:
        until("both serve", lambda: log.read_text().count("msg=serving") == 2)  # the first answers for both
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert log.read_text().count("msg=stopped") == 2


def test_tls_and_client_certificates(tmp_path: Path) -> None:
    listen, control, engine = free_ports(3)
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    for index, part in enumerate(certificate.cert_chain_pems):
        part.write_to_path(tmp_path / "cert.pem", append=index > 0)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    path = config(tmp_path, listen, control, [engine], "  tls: {cert_file: cert.pem, key_file: key.pem}")
    serve = ("simulate", "serve", "--engine", MODEL, "--speed", "20", "--port", str(engine))
    with (
        running(tmp_path / "e.log", *serve, url=local(engine, "/health")),
        running(
            *(tmp_path / "g.log", "gateway", "-c", str(path)),
            url=local(control, "/ready"),
            CONTROL_TOKEN=TOKEN,
        ),
    ):
        text = subprocess.run(
            ["curl", "-s", "--cacert", tmp_path / "ca.pem", f"https://127.0.0.1:{listen}/v1/models"],
            check=True,
            capture_output=True,
        ).stdout
        assert json.loads(text)["data"][0]["id"] == MODEL


def test_what_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    listen, control = free_ports(2)
    path = config(tmp_path, listen, control, [1], "  tls: {cert_file: no.pem, key_file: no.pem}")
    ended = subprocess.run(
        [CONTROLPLANE, "gateway", "-c", path], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == os.EX_CONFIG
    assert "no.pem" in ended.stderr
    assert "Traceback" not in ended.stderr
    path = config(tmp_path, 0, control, [1])
    ended = subprocess.run(
        [CONTROLPLANE, "gateway", "-c", path, "--workers", "2"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "gateway.listen (127.0.0.1:0)" in ended.stderr


def test_too_few_files_for_the_streams_is_said_with_the_numbers(tmp_path: Path) -> None:
    listen, control = free_ports(2)
    path = config(tmp_path, listen, control, [1], "  most_streams: 4000")
    command = f"ulimit -n 1000 && exec {CONTROLPLANE} gateway -c {path}"
    process = subprocess.Popen(["bash", "-c", command], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert "may have 1000 files open" in said
    assert "4000 streams need 8128" in said
