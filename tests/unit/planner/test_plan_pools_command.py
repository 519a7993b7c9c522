"""`controlplane plan pools`: the table, the JSON, and what is said to bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from controlplane.cli import cli

TRACES = Path(__file__).parents[4] / "shared" / "reference" / "traces"
HEADER = "t_s,input_tokens,output_tokens\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two minutes of short requests, one in 20 of 30,000 tokens."""
    lines = [f"{i * 0.05},{30_000 if i % 20 == 0 else 500},200\n" for i in range(2400)]
    file = tmp_path / "trace.csv"
    file.write_text(HEADER + "".join(lines))
    return file


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["plan", "pools", *map(str, arguments)])


def answer(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    fields = json.loads(result.output)
    assert isinstance(fields, dict)
    return fields


def complaint(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code != 0
    return result.output.strip().splitlines()[-1]


def test_the_table_has_both_ways_and_ends_with_a_verdict(trace: Path) -> None:
    lines = run("--trace", trace).output.splitlines()
    assert lines[0].startswith("trace.csv: 2,400 requests, 20.01 a second, in the mean 1,975 tokens in")
    words = [" ".join(line.split()) for line in lines]
    assert any(line.startswith("by context one 20.01 32,768 13 13 slots") for line in words)
    assert any(line.startswith("by size one 20.01 32,768 256") for line in words)
    assert lines[-1].endswith("reserve by size, and keep one.")


def test_the_json_has_all_figures(trace: Path) -> None:
    fields = answer("--trace", trace, "--rate", 100)
    assert fields["requests"] == 2400
    assert fields["requests_per_second"] == 100
    plan = fields["plans"]["by_context"]
    assert plan["engines"] == plan["short"]["engines"] + plan["long"]["engines"]
    assert plan["saved_ratio"] == pytest.approx(1 - plan["engines"] / plan["one"]["engines"])
    assert plan["one"]["bound"] == "slots"
    assert fields["conclusion"]


def test_what_is_asked_for_is_used(trace: Path) -> None:
    fields = answer(
        "--trace", trace, "--boundary", 2048, "--engine", "a100-8b", "--context", 65_536, "--ttft", "1s"
    )
    assert fields["engine"].startswith("A100")
    assert (fields["context_tokens"], fields["ttft_seconds"]) == (65_536, 1.0)
    assert {plan["boundary_tokens"] for plan in fields["plans"].values()} == {2048}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "trace.csv:1: the header must be t_s,input_tokens,output_tokens (got )"),
        (HEADER, "trace.csv: 0 requests are too few to plan from"),
        (HEADER + "0,10,10\n", "trace.csv: 1 requests are too few to plan from"),
        (HEADER + "0,10,10\n1,ten,10\n", "trace.csv:3: not a time and two numbers of tokens: 1,ten,10"),
        (HEADER + "0,10,10\n1,10\n", "trace.csv:3: not a time and two numbers of tokens: 1,10"),
        (HEADER + "0,10,10\n1,-4,10\n", "trace.csv:3: out of range: 1,-4,10"),
        (HEADER + "0,10,10\n1,10,99999999\n", "trace.csv:3: out of range: 1,10,99999999"),
        (HEADER + "0,10,10\ninf,10,10\n", "trace.csv:3: out of range: inf,10,10"),
        (HEADER + "5,10,10\n5,10,10\n", "trace.csv: all requests come at the same second"),
        (HEADER + "0,10,10\n" + "9" * 5000 + ",1\n", "not a time and two numbers of tokens: 999"),
        (HEADER + "0,10,10\n1," + "9" * 5000 + ",1\n", "not a time and two numbers of tokens: 1,999"),
        (HEADER + "0,10,10\n1,900000,10\n", "does not fit the KV cache of H100-80GB"),
    ],
)
def test_a_bad_trace_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    said = complaint("--trace", file)
    assert words in said
    assert said.startswith("Error: ")
    assert len(said) < len(str(file)) + 200


def test_what_is_no_trace_is_one_sentence(tmp_path: Path) -> None:
    binary = tmp_path / "model.bin"
    binary.write_bytes(b"t_s,\xff\xfe\x00")
    assert complaint("--trace", binary).endswith("model.bin: not a text file")
    assert "cannot be read: No such file" in complaint("--trace", tmp_path / "nothing.csv")
    assert "cannot be read: Is a directory" in complaint("--trace", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--engine", "h200"), "no engine model is called 'h200'; there are a100-8b, h100-8b"),
        (("--context", "1000"), "a sequence of 30,200 tokens, over --context 1,000"),
        (("--boundary", "90000"), "no request is over the boundary of 90,000 tokens"),
        (("--rate", "0"), "'--rate'"),
        (("--ttft", "fast"), "'--ttft': not a duration like 250ms"),
        (("--tpot", "0ms"), "'--tpot': must be over 0 (got 0ms)"),
    ],
)
def test_a_bad_option_is_one_sentence(trace: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in complaint("--trace", trace, *arguments)


def test_help_lists_both_plans() -> None:
    listed = CliRunner().invoke(cli, ["plan", "--help"]).output
    assert "kv " in listed
    assert "pools " in listed


@pytest.mark.skipif(not TRACES.is_dir(), reason="no ../shared/reference/traces")
@pytest.mark.parametrize(
    ("name", "rate", "saved"),
    [
        ("azure2023_conv", 100, 0.2),
        ("mooncake_fast25_conversation", 10, 0.1),
        ("servegen_deepseek_r1_reason", 50, 0.7),
    ],
)
def test_published_traces(name: str, rate: int, saved: float) -> None:
    """Two pools save much over engines with slots by context, and next to nothing over one that reserves by
    size. The sibling on own requests is above."""
    plans = answer("--trace", TRACES / f"{name}.csv", "--rate", rate)["plans"]
    assert plans["by_context"]["saved_ratio"] >= saved
    assert plans["by_size"]["saved_ratio_of_many"] < 0.05
    assert plans["by_size"]["one"]["engines"] <= plans["by_context"]["engines"]
