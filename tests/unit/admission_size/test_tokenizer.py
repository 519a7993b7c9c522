"""The model's own tokenizer and chat template, from files."""

from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import TEMPLATE, model_folder
from jinja2 import TemplateError

from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.prompt_size import Basis, prompt_size
from controlplane.gateway.admission.size_calibration import SizeCalibration
from controlplane.gateway.tokenizer import ChatTemplate, ModelTokenizer, TokenizerError


def chat(*contents: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content} for content in contents], **fields}


def rendered(folder: Path, body: dict[str, Any]) -> str:
    template = ChatTemplate.load(folder)
    assert template is not None
    return template.render(body)


def test_texts_count_bytes_and_the_tokens_around_them(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer.load(model_folder(tmp_path))
    assert tokenizer.text_tokens("café", special=False) == 5
    assert tokenizer.text_tokens("café", special=True) == 6
    assert tokenizer.text_tokens("", special=False) == 0


def test_a_tokenizer_file_that_cuts_and_pads_counts_whole_texts(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    tokenizer = ModelTokenizer.load(folder)
    inner = tokenizer._tokenizer
    inner.enable_truncation(4)
    inner.enable_padding(length=100)
    inner.save(str(folder / "tokenizer.json"))
    assert ModelTokenizer.load(folder).text_tokens("0123456789", special=False) == 10


def test_a_chat_counts_what_its_template_writes(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer.load(model_folder(tmp_path))
    # <|user|> hello </s> <|assistant|>
    assert tokenizer.chat_tokens(chat("hello")) == 1 + 5 + 1 + 1
    assert tokenizer.chat_tokens(chat("hello", add_generation_prompt=False)) == 1 + 5 + 1
    assert tokenizer.chat_tokens(chat("hello", add_special_tokens=True)) == 1 + 1 + 5 + 1 + 1
    assert tokenizer.chat_tokens(chat("hello", continue_final_message=True)) is None


def test_parts_become_lines_for_a_template_that_reads_text(tmp_path: Path) -> None:
    body = chat([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"text": "b"}, "c"])
    assert rendered(model_folder(tmp_path), body) == "<|user|>a\nb\nc</s><|assistant|>"


def test_parts_stay_parts_for_a_template_that_reads_them(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% for p in m.content %}[{{ p.type }}:{{ p.text }}]{% endfor %}{% endfor %}"
    )
    body = chat("hi", [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "b"}])
    assert rendered(model_folder(tmp_path, template), body) == "[text:hi][image:][text:b]"


def test_tool_calls_have_their_arguments_as_an_object(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
        "{{ m.content }}{{ m.tool_call_id }};{% endfor %}"
    )
    calls = [{"function": {"name": "f", "arguments": text}} for text in ('{"a": "<ü>"}', "{", "[1]", None)]
    body = {
        "messages": [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "t1", "content": [{"type": "text", "text": "4 C"}]},
        ]
    }
    assert rendered(model_folder(tmp_path, template), body) == '{"a": "<ü>"}{}{}{};4 Ct1;'


def test_tools_choose_their_template_and_come_with_the_fields_of_engines(tmp_path: Path) -> None:
    templates = [
        {"name": "default", "template": "no tools"},
        {"name": "tool_use", "template": "{{ tools | tojson }}"},
    ]
    folder = model_folder(tmp_path, templates)
    assert rendered(folder, chat("x")) == "no tools"
    tools = [{"type": "function", "function": {"parameters": {"type": "object"}, "name": "f", "extra": 1}}]
    assert rendered(folder, chat("x", tools=tools)) == (
        '[{"type": "function", "function": {"name": "f", "description": null, '
        '"parameters": {"type": "object"}}}]'
    )


def test_templates_have_what_transformers_gives_them(tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}{{ eos_token }}\n  {%- for m in messages %}\n"
        "{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ strftime_now('%Y') | length }}"
        "{{ enable_thinking }}{{ messages | length }}"
    )
    body = chat("a", "b", chat_template_kwargs={"enable_thinking": False, "messages": "not these"})
    assert rendered(model_folder(tmp_path, template), body) == "<s></s>a4False2"


def test_a_template_can_refuse_but_reach_nothing(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TemplateError, match="roles must alternate"):
        rendered(folder, chat("x"))
    folder = model_folder(tmp_path, "{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(TemplateError, match="unsafe"):
        rendered(folder, chat("x"))


def test_a_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    (folder / "chat_template.jinja").write_text("from the file")
    assert rendered(folder, chat("x")) == "from the file"


def test_a_folder_without_a_template_counts_texts_only(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer.load(model_folder(tmp_path, None))
    assert tokenizer.chat_tokens(chat("x")) is None
    (tmp_path / "tokenizer_config.json").unlink()
    assert ModelTokenizer.load(tmp_path / "tokenizer.json").text_tokens("abc", special=False) == 3


def test_bad_files_are_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is no tokenizer that can be read"):
        ModelTokenizer.load(tmp_path)
    folder = model_folder(tmp_path, TEMPLATE + "{% if %}")
    with pytest.raises(TokenizerError, match=r"the chat template in .* cannot be read"):
        ModelTokenizer.load(folder)
    (folder / "tokenizer_config.json").write_text("[")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json cannot be read"):
        ModelTokenizer.load(folder)


def test_developers_become_the_one_system_of_a_template_that_does_not_know_them(tmp_path: Path) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": [{"type": "text", "text": "and"}, {"type": "text", "text": "kind"}]},
    ]
    folder = model_folder(tmp_path)
    assert rendered(folder, {"messages": messages}) == (
        "<|system|>be brief\n\nand\nkind</s><|user|>hi</s><|assistant|>"
    )
    assert rendered(folder, {"messages": messages[:2]}) == (
        "<|system|>be brief</s><|user|>hi</s><|assistant|>"
    )
    # Without a developer the template gets what was sent, in its order.
    assert rendered(folder, {"messages": messages[1:]}) == (
        "<|user|>hi</s><|system|>and\nkind</s><|assistant|>"
    )
    folder = model_folder(tmp_path, TEMPLATE + "{% if 'developer' %}{% endif %}")
    assert rendered(folder, {"messages": messages[:1]}) == "<|developer|>be brief</s><|assistant|>"


def test_reasoning_effort_switches_thinking(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "{{ reasoning_effort }} {{ enable_thinking }}")
    assert rendered(folder, chat("x")) == "None "
    assert rendered(folder, chat("x", reasoning_effort="none")) == "none False"
    assert rendered(folder, chat("x", reasoning_effort="high")) == "high True"
    kept = chat("x", reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
    assert rendered(folder, kept) == "none True"


def test_a_request_that_is_no_chat_raises_and_is_sized_without(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer.load(model_folder(tmp_path))
    for message in ("x", {"content": "no role"}, {"role": "user", "content": [5]}):
        body = {"messages": [message]}
        with pytest.raises((TypeError, KeyError, ValueError, AttributeError)):
            tokenizer.chat_tokens(body)
        size = prompt_size(
            Endpoint.CHAT, body, 50, tenant="acme", calibration=SizeCalibration(), tokenizer=tokenizer
        )
        assert size.basis is Basis.CALIBRATED
    lone = prompt_size(
        Endpoint.COMPLETIONS,
        {"prompt": "\ud800" * 100},
        50,
        tenant="acme",
        calibration=SizeCalibration(),
        tokenizer=tokenizer,
    )
    assert (lone.basis, lone.tokens) == (Basis.CALIBRATED, 75)
