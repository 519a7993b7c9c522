"""Targets from DNS: address records by the system's resolver, SRV records by dnspython."""

import asyncio
import socket
from typing import Protocol

import dns.asyncresolver
import dns.exception
import dns.name
import dns.rdatatype
import dns.resolver

from controlplane.sources.last_good import Found, Trouble
from controlplane.sources.urls import engine_url

RESOLVE_SECONDS = 10.0
"""How often a name is resolved anew."""

_TIMEOUT_SECONDS = 5.0
_FAMILIES = {"A": socket.AF_INET, "AAAA": socket.AF_INET6}
_NO_SUCH_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


class Resolver(Protocol):
    """Asks DNS. An empty answer means that there is no such record; OSError or TimeoutError no answer."""

    async def addresses(self, name: str, record: str) -> list[str]:
        """IP addresses of `name`, `record` being A or AAAA."""
        ...

    async def services(self, name: str) -> list[tuple[str, int]]:
        """(host, port) of the SRV records of `name`."""
        ...


class SystemResolver:
    """The resolver of this machine."""

    async def addresses(self, name: str, record: str) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(name, None, family=_FAMILIES[record], type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno in _NO_SUCH_NAME:
                return []
            raise
        return [str(address[0]) for *_, address in found]

    async def services(self, name: str) -> list[tuple[str, int]]:
        try:
            # A resolver is made anew each time, because the servers in resolv.conf change.
            answer = await dns.asyncresolver.Resolver().resolve(name, dns.rdatatype.SRV, search=True)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return []
        except dns.exception.DNSException as error:
            raise OSError(None, str(error).partition("\n")[0][:200]) from None
        # The root as a target says that the service is decidedly not available (RFC 2782).
        served = (record for record in answer if record.target != dns.name.root)
        return [(record.target.to_text(omit_final_dot=True), record.port) for record in served]


class DnsName:
    """One name that stands for the engines of a pool."""

    def __init__(self, name: str, record: str, scheme: str, path: str, resolver: Resolver) -> None:
        self.place = f"{name} ({record})"
        self._name = name
        self._record = record
        self._scheme = scheme
        self._path = path
        self._resolver = resolver

    async def look(self) -> tuple[Found, ...] | Trouble:
        """What the name stands for now, in a stable order."""
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                endpoints = await self._endpoints()
        except TimeoutError:
            return Trouble(f"was not resolved within {_TIMEOUT_SECONDS:g} s")
        except OSError as error:
            return Trouble(f"cannot be resolved ({(error.strerror or str(error)).lower()})")
        try:
            return tuple(
                Found(engine_url(f"{_bracketed(host)}:{port}", self._scheme, self._path))
                for host, port in sorted(set(endpoints))
            )
        except ValueError as error:
            return Trouble(f"stands for something that is no host ({error})")

    async def _endpoints(self) -> list[tuple[str, int]]:
        if self._record == "SRV":
            return await self._resolver.services(self._name)
        host, _, port = self._name.rpartition(":")
        return [(address, int(port)) for address in await self._resolver.addresses(host, self._record)]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
