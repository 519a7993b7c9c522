"""What of a target's address may be shown."""

from urllib.parse import urlsplit, urlunsplit


def without_secrets(url: str) -> str:
    """The address without user, password, query and fragment; "" for one that cannot be read."""
    try:
        parts = urlsplit(url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    except ValueError:
        return ""
