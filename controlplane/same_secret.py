"""The one place where what somebody shows is compared with a secret."""

from hashlib import sha256
from hmac import compare_digest


def same_secret(shown: bytes, secret: bytes) -> bool:
    """Whether they are equal, in a time that tells nothing of either: digests, equally long, are compared."""
    return compare_digest(sha256(shown).digest(), sha256(secret).digest())
