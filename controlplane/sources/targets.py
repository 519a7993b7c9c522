"""Which engines there should be: static lists, discovery files, DNS and pods, put together into one list.

The list is stable: the same answers give the same targets with the same names in the same order, and a
target keeps its name as long as it is there.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import count

import msgspec

from controlplane.signals.decision import Event, Severity
from controlplane.signals.samples import Target
from controlplane.sources.dns_sd import RESOLVE_SECONDS, DnsName, Resolver, SystemResolver
from controlplane.sources.file_sd import DiscoveryFiles
from controlplane.sources.kubernetes_fleet import Cluster
from controlplane.sources.last_good import Found, LastGood, Trouble
from controlplane.sources.settings import ScrapeSettings, TargetSettings
from controlplane.sources.urls import engine_url, host_and_port, shown

LIMIT = 10_000
"""Most targets of a fleet; further ones are left out, which is told."""


class Discovered(msgspec.Struct, frozen=True):
    """What one look found: the whole list (None where it is that of the look before), what is to be told."""

    targets: tuple[Target, ...] | None
    events: tuple[Event, ...]


class _Oddity(msgspec.Struct, frozen=True):
    """Something odd about the list as a whole, told when it appears."""

    kind: str
    target: str
    sentence: str


class _Pool:
    """The places of one pool that are asked for targets. `known` were its pods before our start."""

    def __init__(
        self,
        name: str,
        settings: TargetSettings,
        scrape: ScrapeSettings,
        resolver: Resolver,
        *,
        cluster: Cluster | None,
        known: tuple[Found, ...],
    ) -> None:
        self.engine = settings.engine
        path = settings.path(scrape)
        self._static = tuple(Found(engine_url(url, settings.scheme, path)) for url in settings.static or ())
        self._files = (
            DiscoveryFiles(settings.file_sd, settings.scheme, path) if settings.file_sd is not None else None
        )
        self._dns = (
            DnsName(settings.dns, settings.record, settings.scheme, path, resolver)
            if settings.dns is not None
            else None
        )
        self._resolve_at = float("-inf")
        self._places: dict[str, LastGood] = {}
        self._name = name
        self._cluster = cluster if settings.kubernetes is not None else None
        if self._cluster is not None:
            place = self._cluster.place(name)
            self._places[place] = LastGood(place, known)

    async def look(self, now: float, at: float) -> list[Event]:
        """Ask all places that are due at monotonic time `now`."""
        if self._cluster is not None:
            (pods,) = self._places.values()
            found, sure = self._cluster.found(self._name)
            return list(pods.take(found, now, at, sure=sure))
        answers: dict[str, tuple[Found, ...] | Trouble] = {}
        gone: set[str] = set()
        if self._files is not None:
            answers = await asyncio.to_thread(self._files.look)
            gone = self._places.keys() - answers.keys()
            answers |= dict.fromkeys(gone, ())
        # A due time further away than an interval was set before the clock went back.
        if self._dns is not None and not now < self._resolve_at <= now + RESOLVE_SECONDS:
            answers = {self._dns.place: await self._dns.look()}
            self._resolve_at = now + RESOLVE_SECONDS
        events: list[Event] = []
        for place, answer in answers.items():
            events += self._places.setdefault(place, LastGood(place)).take(answer, now, at)
        for place in gone:
            if not self._places[place].found:
                del self._places[place]
        return events

    def oddities(self) -> list[_Oddity]:
        patterns = self._files.never_matched if self._files is not None else ()
        return [_Oddity("no-discovery-file", pattern, f"{pattern} matches no file") for pattern in patterns]

    def found(self) -> Iterator[Found]:
        yield from self._static
        for _, last_good in sorted(self._places.items()):
            yield from last_good.found


class Discovery:
    """All targets of a fleet."""

    def __init__(
        self,
        pools: Mapping[str, TargetSettings],
        scrape: ScrapeSettings,
        resolver: Resolver | None = None,
        *,
        cluster: Cluster | None = None,
        known: Iterable[Target] = (),
    ) -> None:
        """`cluster` is needed where any pool is in it. `known` are targets from before our start: of them the
        pods stay until the cluster has answered, because who starts while it is away must not lose them.
        """
        self.targets: tuple[Target, ...] = ()
        self._looked = False
        pods: dict[str, list[Found]] = {name: [] for name in pools}
        for target in known:
            if target.pod and target.pool in pods:
                pods[target.pool].append(Found(target.url, pod=target.pod))
        self._pools = {
            name: _Pool(
                name, settings, scrape, resolver or SystemResolver(), cluster=cluster, known=tuple(pods[name])
            )
            for name, settings in pools.items()
        }
        self._told: frozenset[tuple[str, str]] = frozenset()

    async def look(self, now: float, at: float) -> Discovered:
        """Look for targets at monotonic time `now`, Unix time `at`. One look at a time.

        To be called every few seconds: files are read each time, names resolved every RESOLVE_SECONDS.
        """
        looks = await asyncio.gather(*(pool.look(now, at) for pool in self._pools.values()))
        events = [event for look in looks for event in look]
        targets, oddities = self._put_together()
        told = frozenset((oddity.kind, oddity.target) for oddity in oddities)
        events += [
            Event(at, oddity.kind, oddity.target, Severity.WARNING, oddity.sentence)
            for oddity in oddities
            if (oddity.kind, oddity.target) not in self._told
        ]
        self._told = told
        # Also an empty first list is news: who starts again may remember targets that are gone.
        changed = targets != self.targets or not self._looked
        self.targets, self._looked = targets, True
        return Discovered(targets if changed else None, tuple(events))

    def _put_together(self) -> tuple[tuple[Target, ...], list[_Oddity]]:
        # Pool, engine and pod by URL: in two pools its load would count twice.
        homes: dict[str, tuple[str, str, str]] = {}
        oddities: list[_Oddity] = []
        for name, pool in self._pools.items():
            oddities += pool.oddities()
            for found in pool.found():
                wanted = found.pool or name
                home, *_ = homes.setdefault(found.url, (wanted, pool.engine, found.pod))
                if home != wanted:
                    url = shown(found.url)
                    sentence = f"{url} is in the pools {home} and {wanted}: it counts in {home} only"
                    oddities.append(_Oddity("target-in-two-pools", url, sentence))
        if len(homes) > LIMIT:
            sentence = f"{len(homes)} targets were found, only the first {LIMIT} are watched"
            oddities.append(_Oddity("too-many-targets", "fleet", sentence))
        names = self._names(list(homes)[:LIMIT])
        targets = (Target(name, homes[url][0], url, *homes[url][1:]) for url, name in names.items())
        return tuple(targets), oddities

    def _names(self, urls: list[str]) -> dict[str, str]:
        """A unique name for each URL: `host:port`, with more of the URL where several share that.

        Never its query, which may be secret: what differs in nothing else is numbered.
        """
        old = {target.url: target.name for target in self.targets}
        names = {url: old[url] for url in urls if url in old}
        taken = set(names.values())
        for url in urls:
            if url not in names:
                names[url] = next(name for name in _choices(url) if name not in taken)
                taken.add(names[url])
        return {url: names[url] for url in urls}


def _choices(url: str) -> Iterator[str]:
    plain, whole = host_and_port(url), shown(url)
    yield plain
    yield f"{plain}/{whole.split('/', 3)[3]}"
    yield whole
    yield from (f"{whole} ({number})" for number in count(2))
