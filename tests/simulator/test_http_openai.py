"""The official client is content with the simulated server."""

import openai
import pytest
from openai import AsyncOpenAI

from .http_fleet import FAST, fleet, until

MODEL = FAST.model or ""
MESSAGES = [{"role": "user", "content": "say something"}]
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "looks", "parameters": {"type": "object", "properties": {}}},
}


async def test_whole_and_streamed_answers_are_the_same() -> None:
    async with fleet() as client, AsyncOpenAI(base_url=client.url + "/v1", api_key="none") as ai:
        (model,) = (await ai.models.list()).data
        assert model.id == MODEL
        whole = await ai.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_completion_tokens=40, extra_body={"ignore_eos": True}
        )
        stream = await ai.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_completion_tokens=40, extra_body={"ignore_eos": True},
            stream=True, stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 40
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


async def test_completions_of_several_prompts_with_stop_seed_and_n() -> None:
    async with fleet() as client, AsyncOpenAI(base_url=client.url + "/v1", api_key="none") as ai:
        one = await ai.completions.create(model=MODEL, prompt=["a", "b"], n=2, max_tokens=300, seed=5)
        again = await ai.completions.create(model=MODEL, prompt=["a", "b"], n=2, max_tokens=300, seed=5)
        word = one.choices[0].text.split()[1]
        cut = await ai.completions.create(model=MODEL, prompt="a", max_tokens=300, seed=5, stop=[word])
        stream = await ai.completions.create(model=MODEL, prompt="a", max_tokens=300, seed=5, stream=True)
        streamed = "".join([chunk.choices[0].text async for chunk in stream])
    assert [choice.text for choice in one.choices] == [choice.text for choice in again.choices]
    assert len({choice.text for choice in one.choices}) == 4
    assert (cut.choices[0].finish_reason, cut.choices[0].text.count(" ")) == ("stop", 2)
    assert streamed == one.choices[0].text


async def test_tools_are_accepted_and_the_answer_is_text() -> None:
    async with fleet() as client, AsyncOpenAI(base_url=client.url + "/v1", api_key="none") as ai:
        answer = await ai.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[TOOL], max_tokens=5)
    assert answer.choices[0].message.content
    assert not answer.choices[0].message.tool_calls


async def test_errors_are_the_clients_own() -> None:
    async with fleet() as client, AsyncOpenAI(base_url=client.url + "/v1", api_key="none") as ai:
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await ai.chat.completions.create(model="other", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError, match="maximum context length") as refused:
            await ai.completions.create(model=MODEL, prompt=[5] * 2000)
        assert refused.value.param == "input_tokens"


async def test_a_closed_stream_ends_the_request() -> None:
    async with fleet() as client, AsyncOpenAI(base_url=client.url + "/v1", api_key="none") as ai:
        engine = client.fleet.listeners[0].replica.drive.engine
        await client.break_as(slow_factor=50.0)
        stream = await ai.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        assert engine.in_system == 1
        await stream.close()
        await until(lambda: not engine.in_system)
