"""The store of `admission/sync.py` in a Redis (or Valkey), one script call for each exchange.

Every wait has an end, nothing is retried here, and no error's text holds a secret: it may be logged.
"""

import asyncio
import ssl
from pathlib import Path

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from controlplane.gateway.admission.sync import MOST_TENANTS, Pull, Push
from controlplane.gateway.settings import RedisSettings, host_and_port
from controlplane.sources.secrets import SecretError

_SCRIPT = Path(__file__).with_name("store.lua").read_text()
_KEYS = ("tenants", "changes", "gateways", "revision")
_LARGEST_BYTES = 16 << 20


class StoreError(Exception):
    """No exchange, or an unreadable one; the text says why."""


class _Login(CredentialProvider):
    """Reads the password when a connection is made, so that a renewed one is taken up."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        settings = self._settings
        assert settings.password is not None
        password = settings.password.read()
        return (password,) if settings.username is None else (settings.username, password)


class RedisStore:
    """See above. `gateway` is who exchanges."""

    def __init__(self, settings: RedisSettings, gateway: str) -> None:
        host, port = host_and_port(settings.address)
        tls = settings.tls
        self._settings = settings
        self._gateway = gateway
        self._redis = Redis(
            host=host,
            port=port,
            db=settings.database,
            credential_provider=None if settings.password is None else _Login(settings),
            socket_timeout=settings.timeout,
            socket_connect_timeout=settings.timeout,
            retry=Retry(NoBackoff(), 0),
            max_connections=1,
            client_name="controlplane-gateway",
            ssl=tls is not None,
            ssl_ca_certs=None if tls is None or tls.ca_file is None else str(tls.ca_file),
            ssl_certfile=None if tls is None or tls.cert_file is None else str(tls.cert_file),
            ssl_keyfile=None if tls is None or tls.key_file is None else str(tls.key_file),
            ssl_cert_reqs="none" if tls is not None and tls.insecure_skip_verify else "required",
            ssl_check_hostname=not (tls is not None and tls.insecure_skip_verify),
        )
        self._script = self._redis.register_script(_SCRIPT)
        # In braces, so that a cluster keeps them together.
        self._keys = [f"{{{settings.namespace}}}:{key}" for key in _KEYS]

    async def exchange(self, push: Push, lease_seconds: float) -> Pull:
        """Send a push. Raises StoreError; whether it was carried out is then not known."""
        settings = self._settings
        args: list[bytes | str | int] = [
            msgspec.msgpack.encode(push),
            self._gateway,
            int(1000 * lease_seconds),
            MOST_TENANTS,
        ]
        try:
            async with asyncio.timeout(settings.timeout):
                answer = await self._script(keys=self._keys, args=args)
        except (TimeoutError, RedisError, OSError, SecretError, ValueError) as error:
            await self._hang_up()
            raise StoreError(self._cause(error)) from None
        if not isinstance(answer, bytes) or len(answer) > _LARGEST_BYTES:
            raise StoreError("its answer is not ours")
        try:
            return msgspec.msgpack.decode(answer, type=Pull)
        except msgspec.DecodeError:
            raise StoreError("its answer is not ours") from None

    async def close(self) -> None:
        await self._hang_up()

    async def _hang_up(self) -> None:
        """An answer that is still to come would be taken for that of the next push."""
        try:
            async with asyncio.timeout(1.0):
                await self._redis.connection_pool.disconnect(inuse_connections=True)
        except (TimeoutError, RedisError, OSError):
            pass

    def _cause(self, error: Exception) -> str:
        match error:
            case SecretError():
                return f"redis.password: {error}"
            case AuthenticationError():
                return "it refuses our user name or password"
            case TimeoutError() | RedisTimeoutError():
                return f"no answer within {self._settings.timeout:g} s"
        cause = error.__context__
        if isinstance(error, RedisConnectionError) and isinstance(cause, ssl.SSLError):
            return f"no TLS: {(cause.reason or 'failed').replace('_', ' ').lower()}"
        if isinstance(error, RedisConnectionError) and isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        text = str(error).partition("\n")[0].strip()
        return text[:200] or type(error).__name__
