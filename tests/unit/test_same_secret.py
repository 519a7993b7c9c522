"""Nobody learns a key or a token from how long its refusal takes: there is one comparison for all of them."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

import controlplane
from controlplane import same_secret as module
from controlplane.agent.server import application
from controlplane.api.guard import Guard
from controlplane.api.settings import ApiSettings
from controlplane.gateway.inbound import Request
from controlplane.gateway.keyring import Keyring, hashed
from controlplane.gateway.private import bearer_is
from controlplane.gateway.settings import Tenant
from controlplane.same_secret import same_secret

RIGHT = "s3cret-token"
CODE = Path(controlplane.__file__).parent


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_equal_is_equal_and_nothing_else_is(shown: bytes, secret: bytes) -> None:
    assert same_secret(shown, secret) == (shown == secret)
    assert same_secret(shown, bytes(shown))


# Each door asks it, and nothing else decides


def request(authorization: str) -> Request:
    return Request(b"POST", b"/v1/chat/completions", b"1.1", [(b"authorization", authorization.encode())])


async def gateway_control(authorization: str, folder: Path) -> bool:
    return bearer_is(request(authorization), RIGHT)


async def gateway_key(authorization: str, folder: Path) -> bool:
    """Of two tenants, whose hashes are looked for by their first digits: these are told apart before."""
    alike = hashed(authorization.removeprefix("Bearer ").encode())[:4] + "0" * 60
    keys = (hashed(RIGHT.encode()), alike)
    return Keyring({"a": Tenant(keys=keys)}).tenant(request(authorization)) is not None


async def node_agent(authorization: str, folder: Path) -> bool:
    app = application(None, RIGHT, lambda: 0.0)  # type: ignore[arg-type]
    guard: Any = app.middlewares[0]

    async def handler(_: web.BaseRequest) -> web.Response:
        return web.Response()

    asked = make_mocked_request("GET", "/v1/report", headers={"Authorization": authorization})
    return bool((await guard(asked, handler)).status == 200)


async def api(authorization: str, folder: Path) -> bool:
    path = folder / "token"
    path.write_text(RIGHT)
    reached = []

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        pass

    headers = [(b"authorization", authorization.encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/v1/hold", "headers": headers}
    await Guard(inside, ApiSettings(token_file=path))(scope, receive, send)
    return bool(reached)


DOORS: tuple[Callable[[str, Path], Any], ...] = (gateway_control, gateway_key, node_agent, api)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
async def test_each_door_opens_where_it_says_so_and_only_there(
    door: Callable[[str, Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await door(f"Bearer {RIGHT}", tmp_path)
    for wrong in ("Bearer no", f"Bearer {RIGHT}x", f"Bearer {RIGHT[:-1]}", "Bearer " + "x" * 5000):
        assert not await door(wrong, tmp_path)
    compared: list[tuple[bytes, bytes]] = []

    def decide(answer: bool) -> None:
        def compare(one: bytes, other: bytes) -> bool:
            compared.append((one, other))
            return answer

        monkeypatch.setattr(module, "compare_digest", compare)

    decide(False)
    assert not await door(f"Bearer {RIGHT}", tmp_path), "something else finds it equal"
    decide(True)
    assert await door("Bearer nonsense", tmp_path), "something else finds it different"
    assert compared
    assert {(len(one), len(other)) for one, other in compared} == {(32, 32)}


# And no other place compares any


SECRETS = {"secret", "secrets", "password", "digest", "hashed", "bearer", "authorization", "credential"}
"""A name with one of these words in it holds a secret, or what is made of one; so does one that ends in
"token" or in "api_key"."""


def is_secret(name: str) -> bool:
    words = [] if name.isupper() else re.findall(r"[a-z]+", name.lower())
    return bool(SECRETS.intersection(words)) or words[-1:] == ["token"] or words[-2:] == ["api", "key"]


OF_A_LANGUAGE = {("simulator/http/answer.py", "token")}
"""Tokens of an answer."""


def _whole(part: ast.AST) -> Iterator[ast.AST]:
    """What is compared itself: not what only its length or the outcome of another comparison is taken of."""
    if isinstance(part, ast.Compare) or (isinstance(part, ast.Call) and ast.unparse(part.func) == "len"):
        return
    yield part
    for inner in ast.iter_child_nodes(part):
        yield from _whole(inner)


def compared_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names in what is compared by == != in not-in or a match statement, and their lines."""
    kinds = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
    for node in ast.walk(tree):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
                parts += [left, right] if isinstance(operator, kinds) else []
        elif isinstance(node, ast.Match):
            parts = [node.subject]
        for part in parts:
            for inner in _whole(part):
                name = getattr(inner, "id", None) or getattr(inner, "attr", None)
                if isinstance(name, str):
                    yield inner.lineno, name  # type: ignore[attr-defined]


@cache
def trees() -> list[tuple[str, ast.AST]]:
    """The files that have to do with secrets at all."""
    texts = {str(path.relative_to(CODE)): path.read_text() for path in sorted(CODE.rglob("*.py"))}
    words = re.compile("|".join((*SECRETS, r"token\b", "api_?key")), re.IGNORECASE)
    return [(name, ast.parse(text)) for name, text in texts.items() if words.search(text)]


def test_no_secret_is_compared_in_another_way() -> None:
    found = [
        f"{path}:{line} {name}"
        for path, tree in trees()
        for line, name in compared_names(tree)
        if is_secret(name) and (path, name) not in OF_A_LANGUAGE
    ]
    assert found == []


def test_the_comparison_of_digests_stands_in_one_file() -> None:
    users = {
        path
        for path, tree in trees()
        for node in ast.walk(tree)
        if (isinstance(node, ast.alias) and "compare_digest" in node.name)
        or (isinstance(node, ast.Attribute) and node.attr == "compare_digest")
    }
    assert users == {"same_secret.py"}


@pytest.mark.parametrize(
    "code",
    [
        "if token == shown: pass",
        "ok = shown in (settings.control.token.read(), b'')",
        "ok = not request.header('x') != self._secret",
        "match digest:\n case 'a': pass",
        "ok = hashed(key) in known",
        "ok = a < b == api_key",
        "ok = (len(token), token) == (3, shown)",
    ],
)
def test_the_search_finds_what_it_is_for(code: str) -> None:
    assert [name for _, name in compared_names(ast.parse(code)) if is_secret(name)]


@pytest.mark.parametrize(
    "code",
    [
        "if token is None: pass",
        "ok = tokens == 3",
        "ok = first_token_at == at",
        "ok = key == 'a'",
        "a < token",
        "ok = len(token) == 5 and (token is None) == (secret is None)",
    ],
)
def test_and_nothing_else(code: str) -> None:
    assert not [name for _, name in compared_names(ast.parse(code)) if is_secret(name)]
