"""URLs of engines: read from what people write, named, and shown without what may be secret."""

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:/]*)(:\d*)?(/|$)")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_LONGEST = 2048


def engine_url(text: str, scheme: str, path: str) -> str:
    """The whole URL of what people write: `10.0.0.7:8000`, `https://vllm-0.chat` or a URL with its own path.

    `scheme` and `path` stand in where the text has none. One endpoint has one URL: the host is in small
    letters, a default port is left out. ValueError, with a sentence that shows no secret,
    where it is none of these.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"a URL of {len(text)} characters is over the limit of {_LONGEST}")
    parts = _split(text if "://" in text else f"{scheme}://{text}")
    address = _address(parts, text)
    if parts.fragment:
        raise ValueError(f"{shown(text)}: a URL of an engine has no #fragment")
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{address}{parts.path if parts.path not in ('', '/') else path}{query}"


def host_and_port(url: str) -> str:
    """`host:port` of a URL that `engine_url` made, the port always written."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or _DEFAULT_PORTS[parts.scheme]}"


def base_url(text: str, what: str) -> str:
    """The whole URL of a server below which paths are asked for; `what` it is goes into the ValueError."""
    base = engine_url(text, "http", "").rstrip("/")
    if "?" in base:
        raise ValueError(f"{shown(text)}: {what} has no ?query")
    return base


def shown(url: str) -> str:
    """A URL, or what someone took for one, as it may stand in a message or a name.

    Without user, password, query and fragment; whatever stands before an `@` may be a password.
    """
    visible = re.split(r"[?#]", url, maxsplit=1)[0]
    scheme, separator, rest = visible.rpartition("://")
    rest = rest.rpartition("@")[2]
    # A password with `?` or `#` in it ends the visible part too early, in what then looks like a port.
    if "@" in url[len(visible) :] and not _AUTHORITY.match(rest):
        return "(not a URL)"
    return f"{scheme.rpartition('@')[2]}{separator}{rest}"[:_LONGEST]


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port  # a port is only read when it is asked for
    except ValueError:  # whose text may repeat what stands where a port belongs: a piece of a password
        raise ValueError(f"{shown(text)}: not a URL (host or port cannot be read)") from None
    return parts


def _address(parts: SplitResult, text: str) -> str:
    """`host[:port]` of a URL, checked."""
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError(f"{shown(text)}: neither http:// nor https://")
    if "@" in parts.netloc:
        raise ValueError(f"{shown(text)}: credentials do not belong in a URL, name their file in scrape.auth")
    host = parts.hostname or ""
    port = "" if parts.port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{parts.port}"
    if parts.port == 0:
        raise ValueError(f"{shown(text)}: port 0 is no port")
    if ":" in host:
        try:
            return f"[{ipaddress.IPv6Address(host)}]{port}"
        except ValueError:
            raise ValueError(f"{shown(text)}: {host!r} is not an IPv6 address") from None
    if not _HOST.fullmatch(host):
        raise ValueError(f"{shown(text)}: {host!r} is not a host name")
    return f"{host}{port}"
