"""`controlplane simulate serve`, as a user runs it."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result

from controlplane.cli import cli
from tests.gateway.processes import free_ports

PATIENCE_SECONDS = 60.0


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", *arguments])


@contextmanager
def running(*command: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed at the end of the test, if it has not ended by then."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def lines_until(process: subprocess.Popen[str], pattern: str) -> list[str]:
    """What it prints up to the first line that has the pattern."""
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return lines
    raise AssertionError(f"it ended without {pattern!r}: {''.join(lines)}")


def serve(*arguments: str) -> list[str]:
    return ["-c", "from controlplane.cli import main; main()", "simulate", "serve", *arguments]


def test_it_serves_replicas_on_consecutive_ports_until_sigterm(tmp_path: Path) -> None:
    port, _, dcgm_port = free_ports(3)
    options = (
        "--engine",
        "h100-8b",
        "--max-model-len",
        "4096",
        "--kv-tokens",
        "50000",
        "--max-num-seqs",
        "7",
    )
    dcgm = ("--dcgm-port", str(dcgm_port))
    with running(*serve(*options, "--port", str(port), "--replicas", "2", *dcgm), cwd=tmp_path) as process:
        lines = lines_until(process, f"127.0.0.1:{port + 1}")
        assert lines[0] == "h100-8b: 7 sequences, 50000 tokens of KV cache, max_model_len 4096\n"
        for served in (port, port + 1):
            with urlopen(f"http://127.0.0.1:{served}/v1/models", timeout=30) as answer:
                assert b'"max_model_len":4096' in answer.read()
        with urlopen(f"http://127.0.0.1:{dcgm_port}/metrics", timeout=30) as answer:
            assert b'gpu="1"' in answer.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with running(*serve("--engine", "h100-8b", "--port", port), cwd=tmp_path) as process:
            assert process.wait(PATIENCE_SECONDS) == 1
            assert process.stdout is not None
            said = process.stdout.read()
    assert said.startswith("Error: ")
    assert port in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing option '--engine'"),
        (["--engine", "tpu"], "'tpu' is not one of"),
        (
            ["--engine", "h100-8b", "--kv-tokens", "1000"],
            "hold 1008 tokens, less than max_model_len (131072)",
        ),
        (["--engine", "h100-8b", "--speed", "0"], "speed must be over 0 (got 0.0)"),
        (["--engine", "h100-8b", "--speed", "nan"], "speed must be over 0 (got nan)"),
        (["--engine", "h100-8b", "--port", "65535", "--replicas", "2"], "2 replicas from port 65535"),
    ],
)
def test_options_that_cannot_work_are_refused_in_a_sentence(arguments: list[str], words: str) -> None:
    result = simulate("serve", *arguments)
    assert result.exit_code != 0
    assert words in result.output.replace("\n", " ")


def test_the_group_lists_its_commands_and_each_can_be_loaded() -> None:
    names = {"run", "list", "sweep", "serve"}
    listed = simulate("--help").output
    assert names <= {line.split()[0] for line in listed.splitlines() if line.startswith("  ")}
    for name in names:
        result = simulate(name, "--help")
        assert result.exit_code == 0
        assert result.output.startswith(f"Usage: cli simulate {name} ")
    assert "No such command 'nope'" in simulate("nope").output
