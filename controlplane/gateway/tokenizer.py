"""The model's own tokenizer, read from its files: tokenizer.json, tokenizer_config.json, chat template.

Chats are rendered as vLLM renders them: the Jinja template in transformers' sandbox with its filters and
globals, content as text or as parts, whichever the template reads, tool call arguments as objects. So a
chat of text counts what `usage.prompt_tokens` will say. Media are not counted here.

Needs the packages of the extra `tokenizer`. Counting runs at 2 to 4 MB/s; other threads run meanwhile.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

_MEDIA = {"image": "image", "image_url": "image", "input_image": "image"} | {
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
}
_TEMPLATE_OPTIONS = ("reasoning_effort", "documents")


class TokenizerError(ValueError):
    """A tokenizer that cannot be used; the text is a sentence for people."""


class ModelTokenizer:
    """Counts tokens as the engine will. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, template: "ChatTemplate | None") -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._template = template

    @classmethod
    def load(cls, path: Path) -> "ModelTokenizer":
        """The tokenizer of a model folder, or a tokenizer.json. Raises TokenizerError."""
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises bare Exceptions
            raise TokenizerError(f"{file} is no tokenizer that can be read: {error}") from None
        return cls(tokenizer, ChatTemplate.load(file.parent))

    def text_tokens(self, text: str, *, special: bool) -> int:
        """Tokens of `text`; `special`: with those that the model wants around it (such as BOS)."""
        return len(self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0])

    def chat_tokens(self, body: Mapping[str, object]) -> int | None:
        """Tokens of a chat request. None where there is no template or the request has what is not known
        here; raises whatever the template raises on a request that it refuses."""
        if self._template is None or body.get("continue_final_message"):
            return None
        text = self._template.render(body)
        return self.text_tokens(text, special=body.get("add_special_tokens") is True)


class ChatTemplate:
    """A model's Jinja chat template, and the one for requests with tools where the model has two."""

    def __init__(self, source: str, source_with_tools: str, special_tokens: dict[str, str]) -> None:
        environment = _environment()
        self._plain = _Template(environment, source)
        self._with_tools = _Template(environment, source_with_tools)
        self._special_tokens = special_tokens

    @classmethod
    def load(cls, folder: Path) -> "ChatTemplate | None":
        """The template of a model folder; None where it has none. Raises TokenizerError."""
        config = _json(folder / "tokenizer_config.json")
        templates: object = config.get("chat_template")
        file = folder / "chat_template.jinja"
        if file.is_file():
            templates = file.read_text(encoding="utf-8")
        elif templates is None:
            templates = _json(folder / "chat_template.json").get("chat_template")
        if isinstance(templates, list):
            named = {str(one.get("name")): one.get("template") for one in templates if isinstance(one, dict)}
            plain, with_tools = named.get("default"), named.get("tool_use", named.get("default"))
        else:
            plain = with_tools = templates
        if not isinstance(plain, str) or not isinstance(with_tools, str):
            return None
        try:
            return cls(plain, with_tools, _special_tokens(config))
        except TemplateError as error:
            raise TokenizerError(f"the chat template in {folder} cannot be read: {error}") from None

    def render(self, body: Mapping[str, object]) -> str:
        """The text that the model reads for a chat request."""
        tools = body.get("tools")
        template = self._with_tools if tools else self._plain
        options: dict[str, object] = {name: body.get(name) for name in _TEMPLATE_OPTIONS}
        if options["reasoning_effort"] is not None:
            options["enable_thinking"] = options["reasoning_effort"] != "none"
        asked = body.get("chat_template_kwargs")
        return template.code.render(
            self._special_tokens
            | options
            | (asked if isinstance(asked, dict) else {})
            | {
                "messages": template.turns(_list(body.get("messages"))),
                "tools": [_tool(tool) for tool in _list(tools)] or None,
                "add_generation_prompt": body.get("add_generation_prompt") is not False,
            }
        )


class _Generation(Extension):
    """`{% generation %}` marks what the model is trained on; here it is only what stands inside."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """What transformers gives templates to work with."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment


def _to_json(value: object, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


class _Template:
    """A compiled template and what it expects: content as parts (it loops over some `content`) or as text,
    developers or only a system."""

    def __init__(self, environment: ImmutableSandboxedEnvironment, source: str) -> None:
        self.code: Template = environment.from_string(source)
        loops = environment.parse(source).find_all(nodes.For)
        self._reads_parts = any(_is_content(loop.iter) for loop in loops)
        self._knows_developers = "'developer'" in source or '"developer"' in source

    def turns(self, messages: list[Any]) -> list[dict[str, object]]:
        """Messages in the form that vLLM hands to this template."""
        turns = [_turn(message, self._reads_parts) for message in messages]
        if self._knows_developers or all(turn["role"] != "developer" for turn in turns):
            return turns
        return _with_one_system(turns)


def _with_one_system(turns: list[dict[str, object]]) -> list[dict[str, object]]:
    """Developers become the system, which speaks once and first."""
    theirs = [turn for turn in turns if turn["role"] in ("developer", "system")]
    others = [turn for turn in turns if turn["role"] not in ("developer", "system")]
    if len(theirs) == 1 and turns[0] is theirs[0]:
        return [{**theirs[0], "role": "system"}, *others]
    texts = [text for turn in theirs if (text := _turn_text(turn["content"]))]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _turn_text(content: object) -> str:
    return (
        "\n".join(part["text"] for part in content if "text" in part)
        if isinstance(content, list)
        else str(content)
    )


def _is_content(node: nodes.Node) -> bool:
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return (isinstance(node, nodes.Getattr) and node.attr == "content") or (
        isinstance(node, nodes.Name) and node.name == "content"
    )


def _turn(message: Mapping[str, Any], reads_parts: bool) -> dict[str, object]:
    """A message in the form that vLLM hands to templates."""
    role, content = message["role"], message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    parts = [_part(part) for part in content or ()]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    as_text = not reads_parts or (role == "tool" and len(texts) == len(parts))
    turn: dict[str, object] = {"role": role, "content": "\n".join(texts) if as_text else parts}
    if role == "assistant":
        if message.get("tool_calls"):
            turn["tool_calls"] = [_call(call) for call in message["tool_calls"]]
        if message.get("reasoning") is not None:
            turn["reasoning"] = turn["reasoning_content"] = message["reasoning"]
    for field in ("name", "tool_call_id"):
        if isinstance(message.get(field), str):
            turn[field] = message[field]
    return turn


def _part(part: object) -> dict[str, str]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise ValueError("a part of a message is no object")
    kind = part.get("type", next((field for field in part if field in _MEDIA), "text"))
    if kind in _MEDIA:
        return {"type": _MEDIA[kind]}
    return {"type": "text", "text": part["text"]}


def _call(call: Mapping[str, Any]) -> dict[str, object]:
    """A tool call with its arguments as an object."""
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    function["arguments"] = arguments if isinstance(arguments, dict) else {}
    return {**call, "function": function}


def _tool(tool: Mapping[str, Any]) -> dict[str, object]:
    """A tool definition with the fields, and in the order, that an engine's own model of it has."""
    given = tool["function"]
    function = {field: given.get(field) for field in ("name", "description", "parameters")}
    if given.get("strict") is not None:
        function["strict"] = given["strict"]
    return {"type": "function", "function": function}


def _special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """The tokens that a template may name (`bos_token`, ...)."""
    texts = {name: _token_text(token) for name, token in config.items() if name.endswith("_token")}
    return {name: text for name, text in texts.items() if text is not None}


def _token_text(token: object) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _json(file: Path) -> dict[str, object]:
    """The object in a file; empty where there is no such file. Raises TokenizerError."""
    try:
        fields = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{file} cannot be read: {error}") from None
    if not isinstance(fields, dict):
        raise TokenizerError(f"{file} holds no JSON object")
    return fields
