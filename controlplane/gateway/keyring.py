"""API keys: which tenant a request is from. Only hashes are kept, and no key is compared byte by byte.

A key is looked for where the SDKs of OpenAI (`authorization: Bearer`), Anthropic (`x-api-key`) and Azure
(`api-key`) put it.
"""

import hashlib
from collections.abc import Mapping

from controlplane.gateway.inbound import Request
from controlplane.gateway.settings import ANYBODY, Tenant
from controlplane.same_secret import same_secret

KEY_HEADERS = frozenset({b"authorization", b"x-api-key", b"api-key"})
_BUCKET_HEX = 4  # so many leading digits of a hash choose whom to compare with; they tell nothing of a key


def hashed(key: bytes) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key).hexdigest()


class Keyring:
    """The keys of all tenants. Without any, everybody is the tenant `anybody`."""

    def __init__(self, tenants: Mapping[str, Tenant]) -> None:
        self._tenants = tenants
        self._buckets: dict[str, list[tuple[str, str]]] = {}
        for name, tenant in tenants.items():
            for key in tenant.keys:
                self._buckets.setdefault(key[:_BUCKET_HEX], []).append((key, name))

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return not self._buckets

    def tenant(self, request: Request) -> str | None:
        """The tenant's name; None where the request has no key of any."""
        if self.is_open:
            return ANYBODY
        key = _key(request)
        return None if key is None else self._owner(hashed(key))

    def settings(self, tenant: str) -> Tenant:
        return self._tenants.get(tenant) or _NOBODY_SPECIAL

    def _owner(self, digest: str) -> str | None:
        owner = None
        for known, name in self._buckets.get(digest[:_BUCKET_HEX], ()):
            if same_secret(digest.encode(), known.encode()):
                owner = name
        return owner


_NOBODY_SPECIAL = Tenant()


def _key(request: Request) -> bytes | None:
    for name in (b"x-api-key", b"api-key"):
        value = request.header(name)
        if value:
            return value
    value = request.header(b"authorization")
    if value is None:
        return None
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" and key.strip() else None
