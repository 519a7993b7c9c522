"""What of a request the model will read: its texts, token ids, sequences and media.

Every shape that an engine takes is known here: `prompt` and `input` as a string, strings, token ids or lists
of them; chat messages with content as a string, null or parts; tool calls and tool definitions; the items
of /v1/responses; the blocks of /v1/messages. What is not known is taken as a part of unknown kind, never as
an error: whether a request is right is the engine's to say.

Not counted: `response_format` and other output grammars (engines mask logits with them, the model does not
read them), and the conversation that `previous_response_id` names (it lies in the engine).
"""

import json

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from controlplane.gateway.admission.body_edit import JsonObject
from controlplane.gateway.admission.endpoint import Endpoint

MOST_ITEMS = 20_000
"""More messages, parts, prompts and calls than this are not looked at one by one."""
_DEEPEST = 8
"""Content inside content (a tool's result that holds blocks) is followed this far."""


class TooManyItemsError(Exception):
    """The request has more items, or deeper ones, than are looked at one by one."""


class Media(BaseModel):
    """Tokens taken for one image, audio or video, or for a part of unknown kind.

    What a medium really costs depends on model, size and length, which a gateway would have to fetch and
    decode to know: set the figures of the models that are served. 1,600 is Llama 3.2 Vision's image (1,601)
    and about a megapixel for Qwen2-VL; 750 is half a minute for Qwen2-Audio (25 tokens a second).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    image_tokens: int = Field(1600, ge=0)
    audio_tokens: int = Field(750, ge=0)
    video_tokens: int = Field(8192, ge=0)
    unknown_tokens: int = Field(1600, ge=0)


class PromptText(msgspec.Struct):
    """What was found in a request.

    `pieces` are texts in order (JSON text where an engine renders an object: tool definitions, arguments);
    `messages` how many turns a chat template wraps; `media` how many parts of each kind there are.
    `understood` is false where no prompt of a known shape was found.
    """

    pieces: list[str] = []
    id_tokens: int = 0
    sequences: int = 1
    messages: int = 0
    media: dict[str, int] = {}
    understood: bool = True

    def media_tokens(self, figures: Media) -> int:
        return sum(count * int(getattr(figures, f"{kind}_tokens")) for kind, count in self.media.items())


_MEDIA_KINDS = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "image_pil": "image",
    "image_embeds": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio_embeds": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
}
_TEXT_KINDS = frozenset(
    {
        "text",
        "input_text",
        "output_text",
        "refusal",
        "thinking",
        "reasoning",
        "reasoning_text",
        "summary_text",
        "message",
        "tool_use",
        "tool_result",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
    }
)
_TEXT_FIELDS = ("text", "refusal", "thinking", "content", "summary", "output")
"""Fields of a part that hold text, or parts that do."""
_CALL_FIELDS = ("name", "arguments", "input")
"""Fields of a tool call: texts, or objects that are rendered as JSON."""
_REASONING_FIELDS = ("reasoning_content", "reasoning", "refusal")


def prompt_text(endpoint: Endpoint, body: JsonObject) -> PromptText:
    """What the model will read of a request. Raises TooManyItemsError, and RecursionError from json.dumps."""
    walk = _Walk()
    if endpoint in (Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS):
        field = "prompt" if endpoint is Endpoint.COMPLETIONS else "input"
        if endpoint is Endpoint.EMBEDDINGS and "messages" in body:  # vLLM embeds chats too
            walk.chat(body)
        else:
            walk.prompts(body.get(field))
    elif endpoint is Endpoint.RESPONSES:
        walk.turn(body.get("instructions"))
        walk.items(body.get("input"))
        walk.json(body.get("tools"))
    elif endpoint is Endpoint.MESSAGES:
        walk.turn(body.get("system"))
        walk.chat(body)
    else:
        walk.chat(body)
    return walk.found


class _Walk:
    def __init__(self) -> None:
        self.found = PromptText()
        self._items = 0

    def _count(self, items: int, depth: int = 0) -> None:
        self._items += items
        if self._items > MOST_ITEMS or depth > _DEEPEST:
            raise TooManyItemsError

    def text(self, value: object) -> None:
        if isinstance(value, str) and value:
            self.found.pieces.append(value)

    def json(self, value: object) -> None:
        """A value that engines put into the prompt as JSON text; a string already is one."""
        if isinstance(value, str):
            self.text(value)
        elif value:
            self.found.pieces.append(json.dumps(value, ensure_ascii=False))

    def prompts(self, value: object) -> None:
        """One prompt or several: text, token ids, or lists of either. Each is a sequence of its own."""
        if isinstance(value, str):
            self.text(value)
        elif isinstance(value, list):
            if value and _is_id(value[0]):
                self.found.id_tokens += len(value)
                return
            self._count(len(value))
            self.found.sequences = max(1, len(value))
            for prompt in value:
                if isinstance(prompt, list):
                    self.found.id_tokens += len(prompt)
                else:
                    self.text(prompt)
        else:
            self.found.understood = False

    def chat(self, body: JsonObject) -> None:
        messages = body.get("messages")
        if not isinstance(messages, list):
            self.found.understood = False
            return
        self._count(len(messages))
        for message in messages:
            self.message(message)
        self.json(body.get("tools"))
        self.json(body.get("functions"))
        self.json(body.get("documents"))

    def turn(self, content: object) -> None:
        """A turn that is given as content alone (`system`, `instructions`)."""
        if content:
            self.found.messages += 1
            self.content(content)

    def message(self, message: object) -> None:
        self.found.messages += 1
        if not isinstance(message, dict):
            self.text(message)
            return
        self.content(message.get("content"))
        self.text(message.get("name"))
        for field in _REASONING_FIELDS:
            self.text(message.get(field))
        self.call(message.get("function_call"))
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            self._count(len(calls))
            for call in calls:
                self.call(call.get("function") if isinstance(call, dict) else call)

    def call(self, call: object) -> None:
        if isinstance(call, dict):
            for field in _CALL_FIELDS:
                self.json(call.get(field))

    def items(self, value: object) -> None:
        """The input of /v1/responses."""
        if not isinstance(value, list):
            self.found.understood = isinstance(value, str)
            self.turn(value)
            return
        self._count(len(value))
        for item in value:
            if isinstance(item, dict) and "role" in item:
                self.message(item)
            else:
                self.found.messages += 1
                self.part(item, 0)

    def content(self, content: object, depth: int = 0) -> None:
        if isinstance(content, list):
            self._count(len(content), depth)
            for part in content:
                self.part(part, depth)
        elif isinstance(content, dict):
            self.part(content, depth)
        else:
            self.text(content)

    def part(self, part: object, depth: int) -> None:
        if not isinstance(part, dict):
            self.text(part)
            return
        kind = _kind(part)
        if kind in _MEDIA_KINDS:
            self._medium(_MEDIA_KINDS[kind])
            return
        for field in _TEXT_FIELDS:
            self.content(part.get(field), depth + 1)
        self.call(part)
        if kind == "document" and self._plain_document(part):
            return
        if kind not in _TEXT_KINDS:
            self._medium("unknown")

    def _plain_document(self, part: JsonObject) -> bool:
        """Whether a document of /v1/messages came as plain text."""
        source = part.get("source")
        if not isinstance(source, dict) or source.get("type") != "text":
            return False
        self.text(source.get("data"))
        return True

    def _medium(self, kind: str) -> None:
        self.found.media[kind] = self.found.media.get(kind, 0) + 1


def _kind(part: JsonObject) -> str:
    """The type of a part; engines also take parts that only have the field of their type."""
    kind = part.get("type")
    if isinstance(kind, str):
        return kind
    return next((field for field in part if field in _MEDIA_KINDS), "text" if "text" in part else "")


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
