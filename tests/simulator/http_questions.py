"""Questions to a vLLM server, and the shapes of its answers: what a client can rely on.

`data/vllm_answers.json` holds the shapes that a real vLLM 0.32 gave (tests/real keeps it honest). By hand:

    python tests/simulator/http_questions.py http://127.0.0.1:8000 MODEL >vllm_answers.json
"""

import json
import sys
import urllib.error
import urllib.request
from itertools import groupby
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "data" / "vllm_answers.json"
MAX_MODEL_LEN = 1024

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "garden river stone"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
NO_TOOL = {"tool_choice": "none"}  # else a server without a parser of calls refuses
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
EACH_USAGE = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}

# Name: path, and the body: JSON without its model, which is added unless there is one, raw bytes, or None for
# a GET.
QUESTIONS: dict[str, tuple[str, Any]] = {
    "completion": (COMPLETIONS, {"prompt": "garden river", "max_tokens": 2}),
    "completion streamed": (COMPLETIONS, {"prompt": "garden river", "max_tokens": 8, "stream": True}),
    "completion streamed, usage": (COMPLETIONS, {"prompt": "garden river", "max_tokens": 8, **USAGE}),
    "completion streamed, usage in each": (COMPLETIONS, {"prompt": "garden", "max_tokens": 8, **EACH_USAGE}),
    "two prompts, two answers each": (COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 1, "n": 2}),
    "tokens as prompt": (COMPLETIONS, {"prompt": [5, 6, 7], "max_tokens": 1}),
    "default max_tokens": (COMPLETIONS, {"prompt": [5, 6, 7], "ignore_eos": True}),
    "max_tokens null": (COMPLETIONS, {"prompt": [5, 6, 7], "max_tokens": None, "ignore_eos": True}),
    "max_tokens as text": (COMPLETIONS, {"prompt": [5, 6, 7], "max_tokens": "1"}),
    "max_tokens cut": (COMPLETIONS, {"prompt": [5] * 1020, "max_tokens": 16, "ignore_eos": True}),
    "no model named": (COMPLETIONS, {"model": "", "prompt": [5], "max_tokens": 1}),
    "unknown fields": (COMPLETIONS, {"prompt": [5], "max_tokens": 1, "user": "u", "extra": {"a": 1}}),
    "chat": (CHAT, {"messages": MESSAGES, "max_tokens": 2}),
    "chat, two answers": (CHAT, {"messages": MESSAGES, "max_completion_tokens": 2, "n": 2}),
    "chat streamed": (CHAT, {"messages": MESSAGES, "max_tokens": 8, "stream": True}),
    "chat streamed, usage": (CHAT, {"messages": MESSAGES, "max_completion_tokens": 8, **USAGE}),
    "chat in parts": (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
                             "max_tokens": 1}),
    "chat without content": (CHAT, {"messages": [{"role": "user"}], "max_tokens": 1}),
    "chat with tools": (CHAT, {"messages": MESSAGES, "max_tokens": 2, "tools": [TOOL], **NO_TOOL}),
    "other model": (COMPLETIONS, {"model": "nope", "prompt": "x"}),
    "prompt too long": (COMPLETIONS, {"prompt": [5] * 1100}),
    "prompt fills the context": (COMPLETIONS, {"prompt": [5] * 1024, "max_tokens": 1}),
    "max_tokens over the context": (CHAT, {"messages": MESSAGES, "max_tokens": 5000}),
    "max_tokens 0": (COMPLETIONS, {"prompt": [5], "max_tokens": 0}),
    "max_tokens negative": (COMPLETIONS, {"prompt": [5], "max_tokens": -1}),
    "max_tokens no number": (COMPLETIONS, {"prompt": [5], "max_tokens": "ten"}),
    "min_tokens over max_tokens": (COMPLETIONS, {"prompt": [5], "max_tokens": 5, "min_tokens": 9}),
    "no prompt": (COMPLETIONS, {}),
    "empty prompt": (COMPLETIONS, {"prompt": ""}),
    "empty list of prompts": (COMPLETIONS, {"prompt": []}),
    "prompt of another type": (COMPLETIONS, {"prompt": 5}),
    "stop of another type": (COMPLETIONS, {"prompt": [5], "stop": 5}),
    "model of another type": (COMPLETIONS, {"model": 5, "prompt": [5]}),
    "n 0": (COMPLETIONS, {"prompt": [5], "n": 0}),
    "negative temperature": (COMPLETIONS, {"prompt": [5], "temperature": -1}),
    "stream options alone": (COMPLETIONS, {"prompt": [5], "stream_options": {"include_usage": True}}),
    "no messages": (CHAT, {}),
    "empty messages": (CHAT, {"messages": []}),
    "messages of another type": (CHAT, {"messages": "x"}),
    "bad JSON": (COMPLETIONS, b"{bad"),
    "a list": (COMPLETIONS, b"[1]"),
    "empty body": (COMPLETIONS, b""),
    "tokenize": ("/tokenize", {"prompt": "garden river", "return_token_strs": True}),
    "tokenize a chat": ("/tokenize", {"messages": MESSAGES}),
    "tokenize nothing": ("/tokenize", {}),
    "detokenize": ("/detokenize", {"tokens": [77, 479]}),
    "detokenize for another model": ("/detokenize", {"model": "nope", "tokens": [77]}),
    "models": ("/v1/models", None),
    "health": ("/health", None),
    "ping": ("/ping", None),
    "version": ("/version", None),
    "load": ("/load", None),
    "unknown path": ("/nowhere", None),
    "wrong method": (COMPLETIONS, None),
}  # fmt: skip

# Where not only the shape but every word of the error is the same.
SAME_WORDS = {
    *("other model", "prompt too long", "prompt fills the context", "max_tokens over the context"),
    *("max_tokens 0", "max_tokens negative", "min_tokens over max_tokens", "no prompt", "empty prompt"),
    *("empty list of prompts", "n 0", "negative temperature", "stream options alone"),
    *("empty messages", "unknown path", "wrong method"),
}


def shapes(base_url: str, model: str) -> dict[str, Any]:
    """The shape of the answer to each question."""
    return {
        name: _ask(base_url, model, *question, name in SAME_WORDS) for name, question in QUESTIONS.items()
    }


def shape_of(value: Any) -> Any:
    """Names and types, without the values."""
    if isinstance(value, dict):
        return {name: shape_of(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape_of(inner) for inner in value[:1]]
    return "null" if value is None else type(value).__name__


def _ask(base_url: str, model: str, path: str, body: Any, same_words: bool) -> Any:
    data = body
    if isinstance(body, dict):
        data = json.dumps({"model": model, **body}).encode()
    headers = {} if data is None else {"Content-Type": "application/json"}
    try:
        answer = urllib.request.urlopen(urllib.request.Request(base_url + path, data, headers), timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        text = answer.read().decode()
        content_type = answer.headers.get("Content-Type", "")
        found: dict[str, Any] = {"status": answer.status, "type": content_type.partition(";")[0]}
    if content_type.startswith("text/event-stream"):
        events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        assert events.pop() == "[DONE]"
        told = [shape_of(json.loads(event)) for event in events]
        # How many events of one shape there are depends on how fast they came.
        return {**found, "events": [shape for shape, _ in groupby(told)]}
    if not text:
        return found
    parsed = json.loads(text)
    if found["status"] == 200:
        counts = {name: parsed["usage"][name] for name in ("completion_tokens",) if "usage" in parsed}
        return {**found, "body": shape_of(parsed), **counts}
    if same_words:
        return {**found, "words": json.loads(text.replace(model, "MODEL"))}
    error = parsed["error"]
    # How a body fails to fit is said in the words of whatever read it.
    return {**found, "error": {**error, "message": "str", "param": str(error["param"]).split(".")[:2]}}


if __name__ == "__main__":
    print(json.dumps(shapes(sys.argv[1], sys.argv[2]), indent=1))
