"""The certificate of a server of ours, which may be renewed while the server runs."""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import NamedTuple

RENEWAL_SECONDS = 60.0
"""How often a server looks whether its certificate was renewed."""

_log = logging.getLogger(__name__)


class _Seen(NamedTuple):
    """What tells a file from the one that was there before."""

    inode: int
    changed_ns: int
    size: int


class ServerCertificate:
    """The certificate and key that `context` shows to whoever connects.

    Raises OSError (ssl.SSLError among them) or ValueError where they cannot be used at the start. Later a
    file that is missing, half renewed or does not fit the other leaves what was there before, said once.
    """

    def __init__(self, context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
        self.context = context
        self._cert_file, self._key_file = cert_file, key_file
        self._seen = self._look()
        self._is_troubled = False
        self._load(context)

    def renew(self) -> None:
        """Take the files anew if they have changed: it counts for connections from now on."""
        try:
            seen = self._look()
            if seen == self._seen:
                return
            # A pair that does not fit would leave the live context with half of it.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except (OSError, ValueError) as error:
            if not self._is_troubled:
                _log.warning(f"{self._cert_file}: not renewed, the certificate before stays: {error}")
            self._is_troubled = True
            return
        self._seen, self._is_troubled = seen, False
        _log.info(f"{self._cert_file}: the certificate was renewed")

    async def keep_renewing(self) -> None:
        """Look once a minute, until cancelled."""
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            self.renew()

    def _look(self) -> tuple[_Seen, _Seen]:
        stats = [path.stat() for path in (self._cert_file, self._key_file)]
        first, second = (_Seen(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)
        return first, second

    def _load(self, context: ssl.SSLContext) -> None:
        # With no password given, OpenSSL would ask the terminal for the one of an encrypted key.
        context.load_cert_chain(self._cert_file, self._key_file, password="")
