"""Asking an engine how many tokens a prompt is: what to send where, and the count in the answer.

vLLM and SGLang have `/tokenize` (a prompt or chat messages; `count` in the answer); vLLM also counts for
/v1/messages. The shell does the sending. Media are not counted by any of them.
"""

import json
from collections.abc import Mapping

import msgspec

from controlplane.gateway.admission.body_edit import JsonObject
from controlplane.gateway.admission.endpoint import Endpoint

_CHAT_FIELDS = (
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
)
_MESSAGES_FIELDS = ("model", "messages", "system", "tools", "tool_choice", "thinking", "chat_template_kwargs")
_LARGEST_COUNT = 2**40


class TokenizeCall(msgspec.Struct, frozen=True):
    """A POST to an engine: path and JSON body."""

    path: str
    body: bytes


def tokenize_call(endpoint: Endpoint, body: JsonObject) -> TokenizeCall | None:
    """The question that counts a request's prompt; None where no engine has one (token ids, several prompts,
    /v1/responses)."""
    if endpoint is Endpoint.MESSAGES:
        return _call("/v1/messages/count_tokens", _only(body, _MESSAGES_FIELDS))
    if endpoint is Endpoint.CHAT and isinstance(body.get("messages"), list):
        return _call("/tokenize", _only(body, _CHAT_FIELDS))
    prompt = {Endpoint.COMPLETIONS: "prompt", Endpoint.EMBEDDINGS: "input"}.get(endpoint, "")
    text = body.get(prompt)
    if not isinstance(text, str):
        return None
    return _call("/tokenize", {**_only(body, ("model", "add_special_tokens")), "prompt": text})


def counted_tokens(answer: bytes) -> int | None:
    """The count in an engine's answer, None where there is none."""
    try:
        fields = msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    count = fields.get("count", fields.get("input_tokens"))
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _LARGEST_COUNT:
        return None
    return count


def _only(body: JsonObject, fields: tuple[str, ...]) -> JsonObject:
    return {field: body[field] for field in fields if body.get(field) is not None}


def _call(path: str, fields: Mapping[str, object]) -> TokenizeCall | None:
    try:
        return TokenizeCall(path, json.dumps(fields).encode())
    except (RecursionError, ValueError):
        return None
