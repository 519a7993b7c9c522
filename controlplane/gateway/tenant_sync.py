"""Keeps this gateway's counters and quotas together with those of others: an exchange every interval.

What cannot be exchanged is kept and sent later; the requests never wait for it. That the store is lost, or
back, is said once.
"""

import asyncio
import logging
import random
import secrets
from collections.abc import Callable
from typing import Protocol

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.sync import Pull, Push, Sync
from controlplane.gateway.redis_store import StoreError
from controlplane.gateway.settings import RedisSettings
from controlplane.signals.backoff import backoff_seconds

_MOST_PAUSE_SECONDS = 5.0
_log = logging.getLogger(__name__)


class Store(Protocol):
    """What `redis_store.RedisStore` is."""

    async def exchange(self, push: Push, lease_seconds: float) -> Pull: ...

    async def close(self) -> None: ...


def instance_of(gateway: str) -> str:
    """A name for one run of a gateway, that no other run has."""
    return f"{gateway}:{secrets.token_hex(6)}"


class TenantSync:
    """See above; `run` until cancelled."""

    def __init__(
        self, settings: RedisSettings, admission: Admission, instance: str, store: Callable[[str], Store]
    ) -> None:
        """`store` makes the way to it, for the instance of that name."""
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._make_store = store
        self._heard_at = self._loop.time()
        self._has_said = False  # that it is lost
        self.sync = Sync(instance, admission.counters, admission.quotas)
        self.exchanges = 0
        self.failures = 0

    @property
    def age_seconds(self) -> float:
        """Since the last exchange, or the start."""
        return self._loop.time() - self._heard_at

    def figures(self) -> dict[str, float]:
        """For metrics, by the rest of the name."""
        return {
            "sharing_workers": float(not self.sync.is_alone),
            "sharing_age_seconds": self.age_seconds,
            "sharing_exchanges_total": float(self.exchanges),
            "sharing_failures_total": float(self.failures),
        }

    async def run(self) -> None:
        settings = self._settings
        store = self._make_store(self.sync.gateway)
        failed = 0
        me = asyncio.current_task()
        assert me is not None
        try:
            while True:
                if me.cancelling():  # the Redis client may take a cancellation for a timeout of its own
                    raise asyncio.CancelledError
                has_more = await self._exchange(store)
                failed = 0 if has_more is not None else failed + 1
                if has_more:
                    continue
                pause = settings.interval
                if failed:
                    luck = random.random()  # noqa: S311 (spreads load, guards nothing)
                    pause = backoff_seconds(
                        failed, luck, first_seconds=2 * pause, limit_seconds=_MOST_PAUSE_SECONDS
                    )
                await asyncio.sleep(pause)
        finally:
            await store.close()

    async def _exchange(self, store: Store) -> bool | None:
        """Whether there is more to exchange at once; None where it failed."""
        try:
            pull = await store.exchange(self.sync.push(self._loop.time()), self._settings.lease_seconds)
        except StoreError as error:
            self.failures += 1
            self._note_failure(str(error))
            return None
        self.exchanges += 1
        self._heard_at = self._loop.time()
        has_more = self.sync.took(pull, self._heard_at)
        if self._has_said:
            self._has_said = False
            _log.info("redis is back: counters and quotas are shared again")
        return has_more

    def _note_failure(self, why: str) -> None:
        if not self.sync.is_alone and self.age_seconds >= self._settings.lease_seconds:
            self.sync.lost(self._loop.time())
        if self.sync.is_alone and not self._has_said:
            self._has_said = True
            text = f"redis at {self._settings.address}: {why}; counters and quotas are this gateway's own"
            _log.warning(f"{text} until it is back")
