"""Case E5: prompts that are not a string. No 5xx from the estimate, no absurd reservation."""

import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.gateway.admission.body_edit import read_body
from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.output_size import OutputCeiling, OutputSettings, need, output_size
from controlplane.gateway.admission.prompt_size import Basis, PromptSize, prompt_size
from controlplane.gateway.admission.prompt_text import Media
from controlplane.gateway.admission.size_calibration import SizeCalibration

LINES = (Path(__file__).parent / "data" / "E5" / "prompts.jsonl").read_text().splitlines()
ROWS = {row["name"]: row for row in map(json.loads, LINES)}


def sized(row: dict[str, Any], **replaced: Any) -> PromptSize:
    body = {**row["body"], **replaced}
    length = len(json.dumps(body))
    return prompt_size(Endpoint(row["path"]), body, length, tenant="acme", calibration=SizeCalibration())


@pytest.mark.parametrize("name", ROWS)
def test_E5_every_prompt_has_a_size_and_none_is_refused(name: str) -> None:
    row = ROWS[name]
    size = sized(row)
    assert size.tokens == row.get("prompt_tokens", size.tokens)
    assert size.exact is ("prompt_tokens" in row or name == "empty_list")
    assert size.sequences == row.get("sequences", size.sequences)
    output = output_size(Endpoint(row["path"]), row["body"], OutputSettings(), OutputCeiling(), None)
    assert output.refusal is None
    assert not output.edits, "the body that reaches the engine is the one that was sent"


@pytest.mark.parametrize("line", LINES, ids=list(ROWS))
def test_E5_the_bodies_are_read_as_they_are_sent(line: str) -> None:
    body = ROWS[json.loads(line)["name"]]["body"]
    for ascii_only in (True, False):
        assert read_body(json.dumps(body, ensure_ascii=ascii_only).encode()) == body


def test_E5_an_image_counts_by_its_figure_not_by_its_base64() -> None:
    size = sized(ROWS["parts"])
    assert len(LINES[4]) > 4000
    assert size.media_tokens == Media().image_tokens
    assert size.tokens - size.media_tokens < 20


def test_E5_an_unknown_part_gets_the_default_figure() -> None:
    video = sized(ROWS["unknown_part"])
    assert video.media_tokens == Media().video_tokens
    messages = [{"role": "user", "content": [{"type": "hologram", "hologram": {"url": "x" * 9999}}]}]
    unknown = sized(ROWS["unknown_part"], messages=messages)
    assert unknown.media_tokens == Media().unknown_tokens
    assert unknown.tokens < Media().unknown_tokens + 20


def test_E5_tool_definitions_and_arguments_are_part_of_the_size() -> None:
    row = ROWS["null_content_with_tool_calls"]
    whole = sized(row)
    without_tools = sized(row, tools=None)
    user, assistant, tool = row["body"]["messages"]
    assistant = {**assistant, "tool_calls": [{"function": {"name": "weather", "arguments": ""}}]}
    without_arguments = sized(row, messages=[user, assistant, tool])
    assert whole.text_bytes - without_tools.text_bytes == len(json.dumps(row["body"]["tools"]))
    assert whole.text_bytes - without_arguments.text_bytes == len('{"city":"Oslo"}')


def test_E5_token_ids_are_exact_and_embeddings_reserve_no_output() -> None:
    row = ROWS["embeddings_ids"]
    size = sized(row)
    assert size.basis is Basis.IDS
    output = output_size(Endpoint.EMBEDDINGS, row["body"], OutputSettings(), OutputCeiling(), 300)
    assert need(size, output, 32768).tokens == row["prompt_tokens"]
    assert need(size, output, 32768).sequences == 2
