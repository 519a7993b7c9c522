"""How many tokens a request's prompt is, before the engine says so.

The best way that is open is taken:

1. token ids: counted;
2. the model's own tokenizer: chats through its chat template (exact, media apart), texts as they are
   (exact), /v1/responses and /v1/messages as texts plus a figure for each turn (their engines rewrite them);
3. the engine's /tokenize, asked by the shell (`tokenize_call.py`), put in by `counted_by_engine`;
4. bytes over the learned bytes per token (`size_calibration.py`);
5. where no prompt is found, or the request has too many parts: the whole body's bytes as text.

No JSON value makes this raise, and its work is linear in the body.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

import msgspec

from controlplane.gateway.admission.body_edit import JsonObject
from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.prompt_text import Media, PromptText, TooManyItemsError, prompt_text
from controlplane.gateway.admission.size_calibration import Category, SizeCalibration, category_of

TURN_TOKENS = 4
"""What a chat template adds to a turn (role and marks), where no template is at hand."""
REPLY_TOKENS = 3
"""What it adds to begin the answer."""
EXACT_UP_TO_BYTES = 128 << 10
"""Longer texts are not tokenized: at 2 to 4 MB/s that would hold up the request for too long."""


class Tokenizer(Protocol):
    """A model's own tokenizer. Whatever it raises is taken as "cannot say"."""

    def text_tokens(self, text: str, *, special: bool) -> int:
        """Tokens of `text`; `special`: with the tokens that the model wants around it (such as BOS)."""

    def chat_tokens(self, body: Mapping[str, object]) -> int | None:
        """Tokens of a chat request through the chat template, media left out; None without a template."""


class Basis(StrEnum):
    """How a size was found, from the surest to the roughest."""

    IDS = "ids"
    TOKENIZER = "tokenizer"
    ENGINE = "engine"
    CALIBRATED = "calibrated"
    BODY = "body"


class PromptSize(msgspec.Struct, frozen=True):
    """Tokens of all prompts of a request together, media included, and how many sequences they make.

    `text_bytes` and `turn_tokens` are what the size was estimated from and `media_tokens` what was taken for
    media; `exact` says whether the engine will count the same number.
    """

    tokens: int
    sequences: int
    basis: Basis
    exact: bool
    category: Category
    text_bytes: int
    turn_tokens: int
    media_tokens: int


def prompt_size(
    endpoint: Endpoint,
    body: JsonObject,
    body_bytes: int,
    *,
    tenant: str,
    calibration: SizeCalibration,
    tokenizer: Tokenizer | None = None,
    media: Media | None = None,
) -> PromptSize:
    """The size of a request's prompt. `body_bytes` is the length of the body as it came."""
    try:
        found = prompt_text(endpoint, body)
    except (TooManyItemsError, RecursionError, ValueError):
        found = PromptText(understood=False)
    if not found.understood:
        tokens = calibration.tokens(body_bytes, Category.PROSE, tenant)
        return PromptSize(tokens, 1, Basis.BODY, False, Category.PROSE, 0, 0, 0)
    text_bytes = sum(_utf8_bytes(piece) for piece in found.pieces)
    category = category_of(max(found.pieces, key=len, default=""))
    turn_tokens = found.messages * TURN_TOKENS + (REPLY_TOKENS if found.messages else 0)
    media_tokens = found.media_tokens(media or Media())
    basis, exact = Basis.CALIBRATED, False
    tokens = found.id_tokens
    if not found.pieces and not found.messages:
        basis, exact = Basis.IDS, True
    elif tokenizer is not None and text_bytes <= EXACT_UP_TO_BYTES:
        try:
            counted, exact = _tokenized(endpoint, body, found, turn_tokens, tokenizer)
            basis = Basis.TOKENIZER
            tokens += counted
        except Exception:  # a template may refuse what the engine takes; the estimate goes on without it
            exact = False
    if basis is Basis.CALIBRATED:
        tokens += calibration.tokens(text_bytes, category, tenant) + turn_tokens
    return PromptSize(
        tokens=tokens + media_tokens,
        sequences=found.sequences,
        basis=basis,
        exact=exact and not media_tokens,
        category=category,
        text_bytes=text_bytes,
        turn_tokens=turn_tokens,
        media_tokens=media_tokens,
    )


def _tokenized(
    endpoint: Endpoint, body: JsonObject, found: PromptText, turn_tokens: int, tokenizer: Tokenizer
) -> tuple[int, bool]:
    """Tokens by the tokenizer, and whether the engine will count the same."""
    if endpoint is Endpoint.CHAT and "chat_template" not in body:
        chat = tokenizer.chat_tokens(body)
        if chat is not None:
            # Which fields of a tool definition a template gets to see differs between engines.
            return chat, not body.get("tools")
    texts_alone = not found.messages
    special = texts_alone and body.get("add_special_tokens") is not False
    return sum(
        tokenizer.text_tokens(piece, special=special) for piece in found.pieces
    ) + turn_tokens, texts_alone


def counted_by_engine(size: PromptSize, count: int) -> PromptSize:
    """`size` with the engine's own count of texts and template; media come on top, for it counts none."""
    return msgspec.structs.replace(
        size, tokens=count + size.media_tokens, basis=Basis.ENGINE, exact=not size.media_tokens
    )


def learn_from_usage(calibration: SizeCalibration, tenant: str, size: PromptSize, prompt_tokens: int) -> None:
    """Let the calibration learn from the `usage.prompt_tokens` that the engine reported for `size`.

    Requests with media or token ids say nothing about text, so they teach nothing.
    """
    if size.basis in (Basis.IDS, Basis.BODY) or size.media_tokens:
        return
    calibration.learn(size.category, tenant, size.text_bytes, prompt_tokens - size.turn_tokens)


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
