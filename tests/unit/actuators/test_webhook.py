"""The webhook against a gateway in memory, in virtual time, and against a real server over TLS."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from actuator_fakes import NOON, SNAPSHOT, FakeGateway, decision, virtually
from daemon_fakes import settings as daemon_settings
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_time import VirtualLoop

from controlplane.actuators.call import Call, CallFailedError, Reply
from controlplane.actuators.limit import RefusedError, UnfinishedError
from controlplane.actuators.pace import LOOK_AGAIN_SECONDS
from controlplane.actuators.settings import WebhookSettings
from controlplane.actuators.webhook import SecretUnfitError, Webhook
from controlplane.daemon.dispatch import Dispatch
from controlplane.signals.decision import Mode

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
READ_BACK = "http://gw/limits/{target}"


class Rig:
    """One webhook with one gateway."""

    def __init__(self, loop: VirtualLoop, *, read_back: str | None = READ_BACK, **changes: Any) -> None:
        self.loop, self.gateway = loop, FakeGateway(loop)
        self.secret = SECRET
        self.settings = WebhookSettings.model_validate(
            {"url": "http://gw/limits", "read_back": read_back, **changes}
        )
        self.start()

    def start(self) -> None:
        """As a new process would."""
        self.webhook = Webhook(
            self.settings, self.gateway.send, lambda: self.secret, lambda: SNAPSHOT,
            wall=self.loop.wall, steady=self.loop.time, luck=lambda: 0.0,
        )  # fmt: skip

    async def fails(self, error: type[Exception], *arguments: Any, **more: Any) -> str:
        with pytest.raises(error) as failed:
            await self.webhook.apply(decision(*arguments, **more))
        return str(failed.value)


def answering(*replies: Reply | None) -> Callable[[Call], Reply | None]:
    """These to POSTs, one after the other, then nothing of the kind."""
    left = list(replies)
    return lambda call: left.pop(0) if left and call.method == "POST" else None


def status(code: int, **headers: str) -> Reply:
    return Reply(code, {name.replace("_", "-"): value for name, value in headers.items()}, b"")


# -- what is said ----------------------------------------------------------------------------------


def test_the_message_says_what_and_why() -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop)
        await rig.webhook.apply(decision(58, tick=12))
        ((_, call),) = rig.gateway.posts
        assert (call.method, call.url) == ("POST", "http://gw/limits")
        assert json.loads(call.body) == {
            "format": 1,
            "action": "set-limit",
            "target": "a:1",
            "pool": "chat",
            "value": 58,
            "wanted": 58,
            "sequence": int(NOON * 1e6) + 1,
            "old": "64",
            "reason": "tpot-over",
            "sentence": "the limit of a:1 goes to 58",
            "decision": "12-1",
            "decided_at": NOON,
        }
        assert rig.gateway.limits == {"a:1": 58}

    virtually(test)


def test_every_request_is_signed_as_the_standard_says() -> None:
    """Worked out by hand."""

    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop)
        await rig.webhook.apply(decision(58))
        calls = [call for _, call in (*rig.gateway.posts, *rig.gateway.reads)]
        assert len(calls) == 3
        for call in calls:
            name, sent, signature = (
                call.headers[f"webhook-{what}"] for what in ("id", "timestamp", "signature")
            )
            digest = hmac.digest(KEY, f"{name}.{sent}.".encode() + call.body, hashlib.sha256)
            assert signature == f"v1,{base64.b64encode(digest).decode()}"
            assert abs(int(sent) - NOON) < 10

    virtually(test)


def test_the_same_decision_and_value_has_the_same_id_and_any_other_another() -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop)

        async def ids(*arguments: Any, **more: Any) -> str:
            rig.start()
            rig.gateway.limits.clear()
            await asyncio.sleep(1)  # as long as a start takes at least
            await rig.webhook.apply(decision(*arguments, **more))
            return rig.gateway.posts[-1][1].headers["webhook-id"]

        first = await ids(58)
        assert await ids(58) == first
        others = [await ids(57), await ids(58, "b:1"), await ids(58, tick=2), await ids(58, at=NOON + 1)]
        assert len({first, *others}) == 5

    virtually(test)


SHORT, LONG = (base64.b64encode(b"x" * size).decode() for size in (23, 65))


@pytest.mark.parametrize("secret", ["", "hunter2", "whsec_", "whsec_hunter2!", SHORT, LONG, "ä" * 40])
def test_a_secret_that_protects_nothing_is_refused_unseen(secret: str) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop)
        rig.secret = secret
        sentence = await rig.fails(SecretUnfitError)
        assert sentence.startswith("the webhook's secret is not base64 of 24 to 64 bytes")
        assert not secret or secret == "whsec_" or secret not in sentence
        assert rig.gateway.posts == []

    virtually(test)


def test_a_secret_that_is_renewed_counts_at_once() -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop)
        await rig.webhook.apply(decision(58))
        rig.secret = base64.b64encode(b"y" * 24).decode()
        await rig.webhook.apply(decision(58, tick=2))
        one, two = (call.headers["webhook-signature"] for _, call in rig.gateway.posts)
        assert one != two

    virtually(test)


# -- what is done ----------------------------------------------------------------------------------


def test_a_limit_moves_by_its_rate_from_what_the_gateway_has() -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop)
        rig.gateway.limits["a:1"] = 60
        assert await rig.fails(UnfinishedError, 500) == (
            "a:1 is at 90 on its way to 500: a limit moves 50% a second at most"
        )
        assert await rig.fails(UnfinishedError, 500)
        assert len(rig.gateway.posts) == 1, "too early for another step"
        await asyncio.sleep(1)
        await rig.fails(UnfinishedError, 500)
        assert [(body["value"], body["wanted"]) for body in rig.gateway.bodies] == [(90, 500), (135, 500)]

    virtually(test)


def test_without_reading_back_an_accepted_limit_counts_as_set() -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop, read_back=None)
        await rig.webhook.apply(decision(60))
        await asyncio.sleep(5)
        await rig.fails(UnfinishedError, 500)
        assert rig.gateway.limits == {"a:1": 90}
        assert rig.gateway.reads == []

    virtually(test)


@pytest.mark.parametrize(
    ("has", "posted"), [(182, []), (None, [182]), (100, [150, 182]), (300, [200, 182])],
)  # fmt: skip
def test_a_limit_that_stands_still_is_asked_for_and_set_again_where_it_was_lost(
    has: int | None, posted: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop)
        await rig.webhook.apply(decision(182))
        await asyncio.sleep(LOOK_AGAIN_SECONDS - 0.1)
        assert not rig.webhook.is_undone(decision(182))
        await asyncio.sleep(0.1)
        assert rig.webhook.is_undone(decision(182))
        rig.gateway.start_anew()
        if has is not None:
            rig.gateway.limits["a:1"] = has
        for _ in posted[1:]:
            await rig.fails(UnfinishedError, 182)
            await asyncio.sleep(1)
        await rig.webhook.apply(decision(182))
        assert [body["value"] for body in rig.gateway.bodies] == [182, *posted]
        assert rig.gateway.limits == {"a:1": 182}
        assert not rig.webhook.is_undone(decision(182))

    virtually(test)
    assert len(caplog.messages) == bool(posted)
    assert all(said.startswith("webhook: a:1 has ") for said in caplog.messages)


def test_a_gateway_that_starts_anew_has_its_limit_again_though_nothing_new_is_decided(tmp_path: Path) -> None:
    """The daemon's dispatch over it: the gateway is away from 20 s on for 15, and begins with a low limit."""
    enforce = daemon_settings(tmp_path / "journal", modes={"webhook": {"*": Mode.ENFORCE}})
    told: list[str] = []

    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop)
        dispatch = Dispatch((rig.webhook,), lambda one: told.append(one.outcome), steady=loop.time)
        dispatch.take((decision(182),), SNAPSHOT, enforce)
        for second in range(60):
            await asyncio.sleep(1)
            if second == 20:
                rig.gateway.start_anew()
                rig.gateway.limits["a:1"] = 60
                rig.gateway.trouble = lambda _: status(500)
            elif second == 35:
                rig.gateway.trouble = lambda _: None
            dispatch.take((), SNAPSHOT, enforce)
        await dispatch.close()
        assert [body["value"] for body in rig.gateway.bodies] == [182, 90, 135, 182]
        assert rig.gateway.limits == {"a:1": 182}

    virtually(test)
    assert told == ["done", "failed: http://gw/limits/a%3A1: HTTP status 500", "done"]


def test_without_reading_back_a_limit_that_stands_still_is_told_again() -> None:
    """Under the id that it had: who still has it may pass it over."""

    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop, read_back=None)
        await rig.webhook.apply(decision(182))
        rig.gateway.start_anew()
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
        assert rig.webhook.is_undone(decision(182))
        await rig.webhook.apply(decision(182))
        assert rig.gateway.limits == {"a:1": 182}
        one, two = (call.headers["webhook-id"] for _, call in rig.gateway.posts)
        assert one == two

    virtually(test)


def test_a_gateway_that_cannot_be_asked_whether_it_forgot_is_believed_nothing() -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop)
        await rig.webhook.apply(decision(182))
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
        rig.gateway.start_anew()
        rig.gateway.limits["a:1"] = 20
        rig.gateway.trouble = lambda _: status(500)
        await rig.fails(CallFailedError, 182)
        rig.gateway.trouble = lambda _: None
        await asyncio.sleep(1)
        await rig.fails(UnfinishedError, 182)
        assert rig.gateway.limits == {"a:1": 30}

    virtually(test)


def test_a_value_may_take_its_time_to_show_but_not_for_ever() -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop)
        rig.gateway.limits["a:1"] = 64
        show = rig.gateway._show

        def late(url: str) -> Reply:
            if loop.time() < 0.5:
                return Reply(200, {}, b'{"value": 64}')
            return show(url)

        rig.gateway._show = late  # type: ignore[method-assign]
        await rig.webhook.apply(decision(58))
        assert 0.5 <= loop.time() < 1.0
        rig.gateway._show = lambda _: Reply(200, {}, b'{"value": 58}')  # type: ignore[method-assign]
        assert await rig.fails(CallFailedError, 50) == (
            "http://gw/limits/{target}: shows a limit of 58 for a:1 2s after 50 was taken"
        )

    virtually(test)


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (status(500), "http://gw/limits: HTTP status 500"),
        (status(409), "http://gw/limits: HTTP status 409"),
        (
            status(307, Location="http://evil"),
            "http://gw/limits: HTTP status 307: redirects are not followed",
        ),
    ],
)
def test_what_a_gateway_answers_that_does_not_take_it(reply: Reply, sentence: str) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop)
        rig.gateway.trouble = answering(reply)
        assert await rig.fails(CallFailedError) == sentence
        assert rig.gateway.limits == {}

    virtually(test)


@pytest.mark.parametrize("body", [b"", b"58", b'{"limit": 58}', b'{"value": "58"}', b"\xff", b"[" * 50_000])
def test_a_read_back_that_is_none(body: bytes) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop)
        rig.gateway.trouble = lambda call: Reply(200, {}, body) if call.method == "GET" else None
        assert await rig.fails(CallFailedError) == (
            'http://gw/limits/a%3A1: does not answer like {"value": 58}'
        )

    virtually(test)


def test_after_a_failure_the_gateway_is_left_alone_and_then_gets_the_newest_limit() -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop, read_back=None)
        rig.gateway.trouble = lambda _: status(500)
        for tick in range(1, 25):
            sentence = await rig.fails(CallFailedError, 100 - tick, tick=tick)
            assert "HTTP status 500" in sentence
            await asyncio.sleep(1)
        assert [round(at) for at, _ in rig.gateway.posts] == [0, 1, 3, 7, 15]
        rig.gateway.trouble = lambda _: None
        await asyncio.sleep(10)
        await rig.webhook.apply(decision(70, tick=25))
        assert rig.gateway.limits == {"a:1": 70}

    virtually(test)


def test_a_gateway_that_asks_for_time_gets_it() -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop, read_back=None)
        rig.gateway.trouble = answering(status(429, Retry_After="12"))
        await rig.fails(CallFailedError, tick=1)
        await asyncio.sleep(11)
        assert (await rig.fails(CallFailedError, tick=2)).startswith("not tried: the next try is in 1.0 s")
        await asyncio.sleep(1.5)
        await rig.webhook.apply(decision(tick=3))

    virtually(test)


def test_a_message_that_was_lost_on_the_way_back_is_repeated_with_its_id() -> None:
    """The gateway took it, and the answer never came."""

    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop)
        send = rig.gateway.send

        async def lose(call: Call) -> Reply:
            reply = await send(call)
            if call.method == "POST" and len(rig.gateway.posts) == 1:
                raise CallFailedError("http://gw/limits: no whole answer within 2 s")
            return reply

        rig.gateway.send = lose  # type: ignore[method-assign]
        rig.start()
        await rig.fails(CallFailedError)
        await asyncio.sleep(1)
        await rig.webhook.apply(decision())
        ids = {call.headers["webhook-id"] for _, call in rig.gateway.posts}
        assert (len(rig.gateway.posts), len(ids)) == (2, 1)

    virtually(test)


def test_a_message_that_arrives_late_does_not_undo_a_newer_one() -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop, read_back=None)
        late: list[Call] = []

        async def hold_first(call: Call) -> Reply:
            if not late:
                late.append(call)
                raise CallFailedError("http://gw/limits: no whole answer within 2 s")
            return await rig.gateway.send(call)

        rig.webhook = Webhook(
            rig.settings, hold_first, lambda: SECRET, lambda: SNAPSHOT,
            wall=loop.wall, steady=loop.time, luck=lambda: 0.0,
        )  # fmt: skip
        await rig.fails(CallFailedError, 90, tick=1)
        loop.jump(-3600)  # and the clock is set back meanwhile
        await asyncio.sleep(1)
        await rig.webhook.apply(decision(40, tick=2))
        await rig.gateway.send(late[0])
        assert rig.gateway.limits == {"a:1": 40}

    virtually(test)


def test_an_older_decision_and_a_wrong_value_are_refused() -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop)
        await rig.webhook.apply(decision(58, tick=7))
        assert await rig.fails(RefusedError, 50, tick=6) == "superseded by decision 7-1 on a:1"
        await rig.fails(RefusedError, "0", tick=8)
        assert len(rig.gateway.posts) == 1

    virtually(test)


def test_it_takes_the_replicas_of_its_pools() -> None:
    async def test(loop: VirtualLoop) -> None:
        some, every = Rig(loop, pools=["chat"]).webhook, Rig(loop).webhook
        for pool, is_its in (("chat", True), ("batch", False), (None, False)):
            assert some.takes("a:1", pool) is is_its
            assert every.takes("a:1", pool)

    virtually(test)


replies = st.sampled_from(["fine", "refused", "lost", "deaf"])


@settings(deadline=None, max_examples=60)
@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 400), st.floats(0.0, 4.0), replies), min_size=1, max_size=25),
)
def test_whatever_comes_values_move_by_their_rate_and_end_where_they_should(
    reads: bool, story: list[tuple[int, float, str]]
) -> None:
    """A gateway that refuses, takes without an answer, or gets nothing, at any pace of decisions."""

    async def test(loop: VirtualLoop) -> None:
        rig = Rig(loop, read_back=READ_BACK if reads else None)
        rig.gateway.limits["a:1"] = 64
        mood = "fine"
        send = rig.gateway.send

        async def moody(call: Call) -> Reply:
            if mood == "refused":
                return status(503)
            if mood == "deaf":
                raise CallFailedError("http://gw/limits: connection refused")
            reply = await send(call)
            if mood == "lost" and call.method == "POST":
                raise CallFailedError("http://gw/limits: no whole answer within 2 s")
            return reply

        rig.gateway.send = moody  # type: ignore[method-assign]
        rig.start()
        history = [rig.gateway.limits["a:1"]]

        async def apply(new: int, tick: int) -> bool:
            try:
                await rig.webhook.apply(decision(new, tick=tick))
                settled = True
            except (UnfinishedError, CallFailedError):
                settled = False
            history.append(rig.gateway.limits["a:1"])
            return settled

        for tick, (new, wait, reply) in enumerate(story, 1):
            mood = reply
            await apply(new, tick)
            await asyncio.sleep(wait)
        mood, last = "fine", story[-1][0]
        await asyncio.sleep(40)
        for _ in range(60):
            if await apply(last, len(story)):
                break
            await asyncio.sleep(1)
        assert rig.gateway.limits["a:1"] == last
        sequences = [body["sequence"] for body in rig.gateway.bodies]
        assert all(before < after for before, after in pairwise(sequences))
        if reads:
            for before, after in pairwise(history):
                assert before / 1.5 - 1.001 <= after <= before * 1.5 + 1.001

    virtually(test)
