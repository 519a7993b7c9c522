"""How long answers really are: a quantile of the latest outputs, per tenant, route and system prompt.

    learned = the k-th smallest of the n latest outputs, k = ceil(q * (n + 1)); nothing while k > n

which covers the next output with probability q or more, whatever the distribution, while outputs are
exchangeable (Vovk's split conformal bound); the window lets the quantile follow a change. An answer that was
cut by its limit counts with the length it had: that is what it used.

An application is told by a fingerprint of its system prompt. Where that has not answered enough yet, or
every request has one of its own (a date in it), the tenant and route together speak.
"""

import hashlib
import math
from array import array
from bisect import bisect_left, insort

import msgspec

from controlplane.gateway.admission.body_edit import JsonObject
from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.lru import Lru

_FINGERPRINT_CHARACTERS = 4096
_LARGEST_OUTPUT = 2**32 - 1


class OutputKey(msgspec.Struct, frozen=True):
    """Whose outputs are alike. `route` is the caller's word for model and endpoint."""

    tenant: str
    route: str
    fingerprint: str = ""


class _Window:
    """The latest outputs, by age and by size."""

    __slots__ = ("_by_age", "_by_size", "_oldest")

    def __init__(self) -> None:
        self._by_age = array("I")
        self._by_size = array("I")
        self._oldest = 0

    def add(self, tokens: int, most: int) -> None:
        if len(self._by_age) < most:
            self._by_age.append(tokens)
        else:
            gone = self._by_age[self._oldest]
            del self._by_size[bisect_left(self._by_size, gone)]
            self._by_age[self._oldest] = tokens
            self._oldest = (self._oldest + 1) % most
        insort(self._by_size, tokens)

    def quantile(self, share: float, enough: int) -> int | None:
        count = len(self._by_size)
        rank = math.ceil(share * (count + 1))
        return None if count < enough or rank > count else self._by_size[rank - 1]


class OutputQuantiles:
    """Learned output lengths in tokens. `share` is the quantile (0.75, 0.9), `window` how many outputs it is
    taken over, `enough` how many there must be, `most_keys` how many keys are remembered (latest used).

    A full window of 256 outputs takes 2 KiB a key.
    """

    def __init__(
        self, share: float = 0.9, window: int = 256, enough: int = 20, most_keys: int = 4096
    ) -> None:
        if not 0 < share < 1:
            raise ValueError(f"a quantile lies between 0 and 1 (got {share!r})")
        self._share = share
        self._size = window
        self._enough = enough
        self._windows: Lru[OutputKey, _Window] = Lru(most_keys)

    def learned_tokens(self, key: OutputKey) -> int | None:
        """The quantile for `key`, else for its tenant and route; None before enough is known."""
        for known in _keys(key):
            window = self._windows.get(known)
            tokens = None if window is None else window.quantile(self._share, self._enough)
            if tokens is not None:
                return tokens
        return None

    def learn(self, key: OutputKey, tokens: int) -> None:
        """Take in the output of one finished answer (of several, `n`, each counts by itself)."""
        for known in reversed(_keys(key)):
            self._windows.make(known, _Window).add(min(max(tokens, 0), _LARGEST_OUTPUT), self._size)


def _keys(key: OutputKey) -> tuple[OutputKey, ...]:
    """From the most to the least specific."""
    return (key, OutputKey(key.tenant, key.route)) if key.fingerprint else (key,)


def system_fingerprint(endpoint: Endpoint, body: JsonObject) -> str:
    """16 hex digits that tell one system prompt from another; empty where there is none."""
    if endpoint is Endpoint.MESSAGES:
        text = _text(body.get("system"))
    elif endpoint is Endpoint.RESPONSES:
        text = _text(body.get("instructions")) or _leading(body.get("input"))
    else:
        text = _leading(body.get("messages"))
    if not text:
        return ""
    head = text[:_FINGERPRINT_CHARACTERS].encode("utf-8", "surrogatepass")
    return hashlib.blake2b(head, digest_size=8).hexdigest()


def _leading(messages: object) -> str:
    """The text of the first message, where that is the system's."""
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], dict):
        return ""
    first = messages[0]
    return _text(first.get("content")) if first.get("role") in ("system", "developer") else ""


def _text(content: object) -> str:
    """The text of content that is a string or a list of parts, as far as a fingerprint looks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content[:32] if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))
