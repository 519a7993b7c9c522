"""Requests as clients send them, read and checked as vLLM does."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from controlplane.simulator.http import tokens
from controlplane.simulator.http.errors import bad_request, invalid, no_such_model
from controlplane.simulator.http.tokens import LARGEST_PIECE, Tokens

_MOST_SEQUENCES = 1024
_MOST_PROMPT_TOKENS = 1 << 24
_MOST_STOPS = 256
_DEFAULT_COMPLETION_TOKENS = 16
_MISSING = re.compile("Object missing required field `(.*)`")
_BYTE = re.compile(r"\(byte (\d+)\)")

T = TypeVar("T")


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream says of its usage: at the end, and with every chunk."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What completions and chats have in common; fields that change nothing here are accepted unread."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    temperature: float | None = None
    priority: int = 0


class CompletionBody(_Generation, frozen=True, kw_only=True):
    """The body of /v1/completions. A prompt is text or tokens, or a list of either."""

    prompt: str | list[Any] | None = None


class Part(msgspec.Struct, frozen=True):
    """A part of a message; only texts have tokens here."""

    text: str | None = None


class Message(msgspec.Struct, frozen=True):
    """A message of a chat."""

    role: str
    content: str | list[Part] | None = None


class ChatBody(_Generation, frozen=True, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[Any] | None = None


class TokenizeBody(msgspec.Struct, frozen=True):
    """The body of /tokenize: a prompt or a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[Any] | None = None
    return_token_strs: bool | None = False


class DetokenizeBody(msgspec.Struct, frozen=True):
    """The body of /detokenize."""

    tokens: list[int]
    model: str | None = None


class Served(NamedTuple):
    """What requests are checked against."""

    model: str
    max_model_len: int


class Ask(msgspec.Struct, frozen=True):
    """A request for `n` answers to each of the `prompts`, of at most `max_tokens` tokens (None: what
    fits)."""

    is_chat: bool
    prompts: tuple[Tokens, ...]
    n: int
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    seed: int
    priority: int
    stream: bool
    usage_at_end: bool
    usage_in_each: bool

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts, each once however many answers it gets."""
        return sum(len(prompt) for prompt in self.prompts)


def read(body: bytes, shape: type[T]) -> T:
    """A body of this shape. Raises ApiError."""
    if not body:
        raise invalid("body", "Field required")
    try:
        return msgspec.json.decode(body, type=shape, strict=False)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `")
        where = "body" + place.removesuffix("`").removeprefix("$")
        if missing := _MISSING.fullmatch(message):
            raise invalid(f"{where}.{missing[1]}", "Field required") from None
        raise invalid(where, message) from None
    except msgspec.DecodeError as error:
        byte = _BYTE.search(str(error))
        raise invalid(f"body.{byte[1]}" if byte else "body", f"JSON decode error: {error}") from None
    except RecursionError:
        raise invalid("body", "JSON decode error: nested too deeply") from None


def check_model(asked: str | None, served: str) -> None:
    """Raises ApiError where another model is asked for than is served; none at all is fine."""
    if asked and asked != served:
        raise no_such_model(asked, served)


def completion(body: CompletionBody, served: Served) -> Ask:
    """What a completion asks for. Raises ApiError."""
    if body.prompt is None or body.prompt == "":
        raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    _check_stream_options(body)
    check_model(body.model, served.model)
    prompts = tuple(_prompts(body.prompt, served.max_model_len))
    default = _DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    return _ask(body, prompts, max_tokens=default, is_chat=False)


def chat(body: ChatBody, served: Served) -> Ask:
    """What a chat asks for. Raises ApiError."""
    _check_stream_options(body)
    check_model(body.model, served.model)
    if not body.messages:
        raise bad_request(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    prompt = conversation(body.messages, body.tools, served.max_model_len)
    return _ask(body, (prompt,), max_tokens=limit, is_chat=True)


def conversation(messages: list[Message], tools: list[Any] | None, max_model_len: int) -> list[bytes]:
    """The tokens of a chat. Raises ApiError where it is far too long."""
    texts = [(message.role, _text(message.content)) for message in messages]
    _check_size(sum(len(text) for _, text in texts), max_model_len)
    return tokens.chat(texts, tools)


def _ask(body: _Generation, prompts: tuple[Tokens, ...], *, max_tokens: int | None, is_chat: bool) -> Ask:
    n = 1 if body.n is None else body.n
    if n < 1:
        raise bad_request(f"n must be at least 1, got {n}.")
    if len(prompts) > _MOST_SEQUENCES:
        raise bad_request(f"You can pass at most {_MOST_SEQUENCES} prompts, got {len(prompts)}.")
    if n * len(prompts) > _MOST_SEQUENCES:
        raise bad_request(f"n must be at most {_MOST_SEQUENCES // len(prompts)}, got {n}.")
    tokens_in_all = n * sum(map(len, prompts))
    if tokens_in_all > _MOST_PROMPT_TOKENS:
        raise bad_request(
            f"n times the tokens of all prompts must be at most {_MOST_PROMPT_TOKENS}, got {tokens_in_all}."
        )
    if body.temperature is not None and body.temperature < 0:
        raise bad_request(
            f"temperature must be non-negative, got {body.temperature}.", "temperature", body.temperature
        )
    if body.min_tokens < 0:
        raise bad_request(f"min_tokens must be greater than or equal to 0, got {body.min_tokens}.")
    if max_tokens is not None and 1 <= max_tokens < body.min_tokens:
        raise bad_request(
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {body.min_tokens}."
        )
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if "" in stop:
        raise bad_request("stop cannot contain an empty string.")
    if len(stop) > _MOST_STOPS:
        raise bad_request(f"stop can have at most {_MOST_STOPS} strings, got {len(stop)}.")
    options = body.stream_options or StreamOptions()
    return Ask(
        is_chat=is_chat,
        prompts=prompts,
        n=n,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        stop=stop,
        seed=body.seed or 0,
        priority=body.priority,
        stream=bool(body.stream),
        usage_at_end=bool(options.include_usage),
        usage_in_each=bool(options.continuous_usage_stats),
    )


def _check_stream_options(body: _Generation) -> None:
    if body.stream_options is not None and not body.stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")


def _prompts(prompt: str | list[Any], max_model_len: int) -> Iterator[Tokens]:
    if isinstance(prompt, str):
        _check_size(len(prompt), max_model_len)
        yield tokens.pieces(prompt)
        return
    if not prompt:
        raise bad_request("You must pass at least one prompt")
    if all(map(_is_token, prompt)):
        yield prompt
        return
    for item in prompt:
        if isinstance(item, str) and item:
            _check_size(len(item), max_model_len)
            yield tokens.pieces(item)
        elif isinstance(item, list) and item and all(map(_is_token, item)):
            yield item
        else:
            raise invalid("body.prompt", "Input should be a valid string or a valid list of tokens")


def _check_size(characters: int, max_model_len: int) -> None:
    """Raises ApiError for a text that cannot fit, before anybody counts its tokens."""
    most = LARGEST_PIECE * max_model_len
    if characters > most:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"{characters} characters (more than {most} characters, which is the upper bound for "
            f"{max_model_len} input tokens). Please reduce the length of the input prompt.",
            "input_text",
            characters,
        )


def _is_token(item: object) -> bool:
    return type(item) is int and item >= 0


def _text(content: str | list[Part] | None) -> str:
    if isinstance(content, list):
        return "\n".join(part.text for part in content if part.text)
    return content or ""
