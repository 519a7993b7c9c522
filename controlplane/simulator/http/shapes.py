"""Answers as vLLM prints them. The parts of a chunk that stay the same are printed once a stream."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from controlplane.simulator.http.answer import Answer
from controlplane.simulator.http.ask import Ask
from controlplane.simulator.http.drive import Flow
from controlplane.simulator.metrics_page import VERSION

_FINGERPRINT = f"vllm-{VERSION}-simulated"
_DONE = b"data: [DONE]\n\n"


class Origin(NamedTuple):
    """What every part of an answer repeats."""

    id: str
    created: int
    model: str


class Stream:
    """The events of one stream, as its flows come."""

    def __init__(self, ask: Ask, origin: Origin, answers: list[Answer], flows: list[Flow]) -> None:
        self.is_over = False
        self._ask = ask
        self._answers = answers
        self._flows = flows
        self._told = [0] * len(flows)
        self._open = set(range(len(flows)))
        kind = "chat.completion.chunk" if ask.is_chat else "text_completion"
        self._frame = _frame(origin, kind)
        head = b"data: " + msgspec.json.encode(self._frame)[:-1] + b',"choices":[{"index":'
        said = b',"delta":{"content":"' if ask.is_chat else b',"text":"'
        self._heads = [head + b"%d" % answer.index + said for answer in answers]
        end = (
            b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
            if ask.is_chat
            else b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,'
            b'"token_ids":null}]'
        )
        self._end = end if ask.usage_in_each else end + b"}\n\n"

    def news(self) -> bytes:
        """All events that have not been told yet; after the last there are no more."""
        events: list[bytes] = []
        for index in tuple(self._open):
            flow, told = self._flows[index], self._told[index]
            tokens, reason = flow.tokens, flow.reason
            if not told and self._ask.is_chat and (tokens or reason):
                events.append(self._role(index))
            events += [self._token(index, token) for token in range(told, tokens - bool(reason))]
            if reason:
                events.append(self._last(index, tokens, reason, is_told=told == tokens))
                self._open.discard(index)
            self._told[index] = tokens
        if not self._open and not self.is_over:
            self.is_over = True
            events += self._closing()
        return b"".join(events)

    def _role(self, index: int) -> bytes:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        more: dict[str, Any] = {"prompt_token_ids": None, "prompt_text": None}
        if self._ask.usage_in_each:
            more["usage"] = _usage(self._answers[index].request.prompt_tokens, 0)
        return _event({**self._frame, "choices": [choice], **more})

    def _token(self, index: int, token: int) -> bytes:
        answer = self._answers[index]
        chunk = self._heads[index] + answer.piece(token) + self._end
        if not self._ask.usage_in_each:
            return chunk
        usage = msgspec.json.encode(_usage(answer.request.prompt_tokens, token + 1))
        return chunk + b',"usage":' + usage + b"}\n\n"

    def _last(self, index: int, tokens: int, reason: str, *, is_told: bool) -> bytes:
        """The last of `tokens` tokens, unless it is told already, with the reason why it is the last."""
        answer = self._answers[index]
        piece = "" if is_told else answer.piece(tokens - 1).decode()
        choice: dict[str, Any] = {"index": index}
        choice |= {"delta": {"content": piece}} if self._ask.is_chat else {"text": piece}
        choice |= {"logprobs": None, "finish_reason": reason, "stop_reason": _stop_reason(answer, reason)}
        if not self._ask.is_chat:
            choice["prompt_token_ids"] = None
        choice["token_ids"] = None
        more: dict[str, Any] = {}
        if not self._ask.usage_at_end:
            more["system_fingerprint"] = _FINGERPRINT
        if self._ask.usage_in_each:
            more["usage"] = _usage(answer.request.prompt_tokens, tokens)
        return _event({**self._frame, "choices": [choice], **more})

    def _closing(self) -> Iterator[bytes]:
        """The usage of all answers if it was asked for, and the end mark."""
        if self._ask.usage_at_end:
            usage = _usage(self._ask.prompt_tokens, sum(self._told))
            end = {**self._frame, "choices": [], "usage": usage, "system_fingerprint": _FINGERPRINT}
            yield _event(end)
        yield _DONE


def whole(ask: Ask, origin: Origin, answers: list[Answer], flows: list[Flow]) -> bytes:
    """The answer to a request that does not stream; all flows have ended."""
    choices = [_choice(ask, answer, flow) for answer, flow in zip(answers, flows, strict=True)]
    usage = _usage(ask.prompt_tokens, sum(flow.tokens for flow in flows))
    usage |= {"prompt_tokens_details": None, "completion_tokens_details": None}
    prompt = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None} if ask.is_chat else {}
    return msgspec.json.encode(
        {
            **_frame(origin, "chat.completion" if ask.is_chat else "text_completion"),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": _FINGERPRINT,
            "usage": usage,
            **prompt,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
    )


def model_list(model: str, max_model_len: int, created: int) -> bytes:
    """The body of /v1/models."""
    permission = {
        "id": f"modelperm-{created:016x}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": model,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [permission],
    }
    return msgspec.json.encode({"object": "list", "data": [card]})


def _frame(origin: Origin, kind: str) -> dict[str, Any]:
    return {"id": origin.id, "object": kind, "created": origin.created, "model": origin.model}


def _choice(ask: Ask, answer: Answer, flow: Flow) -> dict[str, Any]:
    text = answer.text(flow.tokens)
    choice: dict[str, Any] = {"index": answer.index}
    if ask.is_chat:
        message = {"role": "assistant", "content": text}
        choice["message"] = message | dict.fromkeys(
            ("refusal", "annotations", "audio", "function_call", "reasoning")
        )
    else:
        choice["text"] = text
    reason = flow.reason
    choice |= {"logprobs": None, "finish_reason": reason, "stop_reason": _stop_reason(answer, reason)}
    choice["token_ids"] = None
    if not ask.is_chat:
        choice |= {"prompt_logprobs": None, "prompt_token_ids": None}
    choice["routed_experts"] = None
    return choice


def _stop_reason(answer: Answer, reason: str | None) -> str | None:
    return answer.stopped_by if reason == "stop" else None


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
