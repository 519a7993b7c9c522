"""TLS contexts: whom to trust and who we are. Costly to make, so kept until one of their files changes."""

import ssl
from pathlib import Path

from controlplane.sources.settings import TlsSettings

_FileState = tuple[int, int, int]


class TlsError(Exception):
    """A certificate or key cannot be used; the message names the file."""


class TlsContexts:
    """TLS contexts by their settings."""

    def __init__(self) -> None:
        self._made: dict[tuple[TlsSettings, bool], tuple[tuple[_FileState, ...], ssl.SSLContext]] = {}

    def get(self, tls: TlsSettings, *, with_identity: bool) -> ssl.SSLContext:
        """The context to connect with; our own certificate is in it only `with_identity`.

        TlsError where a file is missing or is not what it should be.
        """
        files = (tls.ca_file, *((tls.cert_file, tls.key_file) if with_identity else ()))
        state = tuple(_state(path) for path in files if path is not None)
        made = self._made.get((tls, with_identity))
        if made is None or made[0] != state:
            made = state, _context(tls, with_identity)
            self._made[tls, with_identity] = made
        return made[1]


def _state(path: Path) -> _FileState:
    try:
        state = path.stat()
    except OSError as error:
        raise TlsError(f"{path}: {_cause(error)}") from None
    return state.st_mtime_ns, state.st_size, state.st_ino


def _context(tls: TlsSettings, with_identity: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise TlsError(f"ca_file {tls.ca_file}: {_cause(error)}") from None
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if with_identity and tls.cert_file is not None:
        try:
            # With no password given, OpenSSL would ask the terminal for the one of an encrypted key.
            context.load_cert_chain(tls.cert_file, tls.key_file, password="")
        except (OSError, ValueError) as error:
            pair = f"cert_file {tls.cert_file} with key_file {tls.key_file}"
            raise TlsError(f"{pair}: {_cause(error)}") from None
    return context


def _cause(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not usable ({error.reason or 'not PEM'})"
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
