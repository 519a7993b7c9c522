"""How large a request is, put together: prompt, output, reservation; and what is learned from its end.

Prompts are counted with the model's own tokenizer where there is one, else by an engine where that is asked
for, else from bytes. Long prompts are counted in a thread, so that streams go on meanwhile.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

import msgspec

from controlplane.gateway.admission.body_edit import JsonObject
from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.output_quantile import OutputKey, OutputQuantiles, system_fingerprint
from controlplane.gateway.admission.output_size import (
    OutputCeiling,
    OutputSettings,
    OutputSize,
    need,
    output_size,
)
from controlplane.gateway.admission.prompt_size import (
    Basis,
    PromptSize,
    Tokenizer,
    counted_by_engine,
    learn_from_usage,
    prompt_size,
)
from controlplane.gateway.admission.size_calibration import SizeCalibration
from controlplane.gateway.admission.tokenize_call import TokenizeCall, counted_tokens, tokenize_call
from controlplane.gateway.admission.usage import Usage

_IN_THREAD_BYTES = 8 << 10  # about 3 ms of counting
_PREFIX_CHARACTERS = 4096

AskEngine = Callable[[str, TokenizeCall], Awaitable[bytes | None]]
"""(model, call) -> an engine's answer, None where there is none in time."""


class Size(msgspec.Struct, frozen=True):
    """A request's size in tokens. `output_tokens` is what to reserve beyond the prompt, `most_output_tokens`
    the most that it can write (None: no limit), both for all its `sequences` together."""

    prompt: PromptSize
    output: OutputSize
    key: OutputKey
    prompt_tokens: int
    output_tokens: int
    most_output_tokens: int | None
    sequences: int


class Sizer:
    """Sizes requests and learns. `ask_engine` is None where engines are not to be asked."""

    def __init__(
        self, settings: OutputSettings, tokenizers: dict[str, Tokenizer], ask_engine: AskEngine | None
    ) -> None:
        self._settings = settings
        self._tokenizers = tokenizers
        self._ask_engine = ask_engine
        self._calibration = SizeCalibration()
        self._quantiles = OutputQuantiles()

    async def size(
        self,
        endpoint: Endpoint,
        document: JsonObject,
        body_bytes: int,
        *,
        tenant: str,
        model: str,
        ceiling: OutputCeiling,
        max_model_len: int | None,
    ) -> Size:
        """The size of a request; `max_model_len` is None where not known."""
        prompt = await self._prompt(endpoint, document, body_bytes, tenant, model)
        key = OutputKey(tenant, f"{model} {endpoint}", system_fingerprint(endpoint, document))
        learned = self._quantiles.learned_tokens(key)
        output = output_size(endpoint, document, self._settings, ceiling, learned)
        needed = need(prompt, output, max_model_len)
        prompt_tokens = min(prompt.tokens, needed.tokens)
        return Size(
            prompt=prompt,
            output=output,
            key=key,
            prompt_tokens=prompt_tokens,
            output_tokens=needed.tokens - prompt_tokens,
            most_output_tokens=None if output.cap_tokens is None else needed.most_tokens - prompt_tokens,
            sequences=needed.sequences,
        )

    def learn(self, tenant: str, size: Size, usage: Usage) -> None:
        """The engine has told what a request used."""
        learn_from_usage(self._calibration, tenant, size.prompt, usage.prompt_tokens)
        if size.output.answers:
            self._quantiles.learn(size.key, usage.completion_tokens // size.sequences)

    async def _prompt(
        self, endpoint: Endpoint, document: JsonObject, body_bytes: int, tenant: str, model: str
    ) -> PromptSize:
        tokenizer = self._tokenizers.get(model)

        def count() -> PromptSize:
            return prompt_size(
                endpoint,
                document,
                body_bytes,
                tenant=tenant,
                calibration=self._calibration,
                tokenizer=tokenizer,
            )

        if tokenizer is not None and body_bytes > _IN_THREAD_BYTES:
            return await asyncio.to_thread(count)
        size = count()
        if self._ask_engine is None or size.basis is not Basis.CALIBRATED:
            return size
        call = tokenize_call(endpoint, document)
        answer = None if call is None else await self._ask_engine(model, call)
        tokens = None if answer is None else counted_tokens(answer)
        return size if tokens is None else counted_by_engine(size, tokens)


def prefix_hash(endpoint: Endpoint, document: JsonObject) -> int | None:
    """A hash of how a prompt begins: what a follow-up of the same conversation begins with too.

    That is the system prompt and the first message of the user. None where there is nothing to go by.
    """
    if endpoint is Endpoint.EMBEDDINGS:
        return None
    parts = [document.get("system"), document.get("instructions")]
    messages = document.get("messages", document.get("input"))
    if isinstance(messages, list):
        parts += messages[:2]
    else:
        parts += [messages, document.get("prompt")]
    text = "\0".join(_text(part) for part in parts if part is not None)
    if not text:
        return None
    head = text[:_PREFIX_CHARACTERS].encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(head, digest_size=8).digest())


def _text(part: object) -> str:
    """Something of a part that tells it from others."""
    if isinstance(part, dict):
        part = part.get("content", part.get("text"))
    if isinstance(part, str):
        return part[:_PREFIX_CHARACTERS]
    if isinstance(part, list):
        return "\n".join(_text(each) for each in part[:8])
    return ""
