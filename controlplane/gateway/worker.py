"""One process of the gateway: everything put together, from start to stop.

A stop, in this order (case C3): not ready at once; requests are still answered until others have had time to
notice (`settle`); then new ones get 503 and connections are closed as they fall idle; streams go on until the
`deadline`; what still runs then is cut, with an error event that says so. A second signal changes nothing.
"""

import asyncio
import contextlib
import functools
import logging
import resource
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from controlplane.gateway import ask, last_message
from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.prompt_size import Tokenizer
from controlplane.gateway.admission.quota import Quotas
from controlplane.gateway.admission.replica import Rotation
from controlplane.gateway.admission.settings import AdmissionSettings
from controlplane.gateway.admission.steering import Judgement, Steering
from controlplane.gateway.admission.tokenize_call import TokenizeCall
from controlplane.gateway.door import Door
from controlplane.gateway.fleet import Fleet
from controlplane.gateway.inbound import JSON, Answer, Header, Limits, Request, Server, refuse
from controlplane.gateway.keyring import KEY_HEADERS, Keyring
from controlplane.gateway.listening import PROTOCOLS, listen
from controlplane.gateway.lookout import Lookout
from controlplane.gateway.metrics import CONTENT_TYPE, Metrics, Sheet, merged, page
from controlplane.gateway.outbound import Origin, Pool, UnreachableError
from controlplane.gateway.own_law import OwnLaw
from controlplane.gateway.private import Private, bearer_is
from controlplane.gateway.public import Public
from controlplane.gateway.redis_store import RedisStore
from controlplane.gateway.settings import ANYBODY, GatewayProcessSettings, InboundTls, Tenant, host_and_port
from controlplane.gateway.siblings import Siblings
from controlplane.gateway.sizing import Sizer
from controlplane.gateway.surroundings import Surroundings
from controlplane.gateway.tenant_sync import TenantSync, instance_of
from controlplane.gateway.told_windows import ToldWindows
from controlplane.gateway.wire import unwanted_by_engines
from controlplane.policy.settings import PolicySettings
from controlplane.server_certificate import ServerCertificate
from controlplane.signals.control import ControlMessage, Grant, UnreadableError, read_message
from controlplane.signals.samples import OutcomeWindow
from controlplane.sources.kubernetes_settings import KubernetesSettings
from controlplane.sources.secrets import SecretError
from controlplane.sources.settings import ScrapeSettings, TargetSettings
from controlplane.sources.tls import TlsContexts, TlsError

_TOKENIZE_SECONDS = 1.0
_CREDENTIALS_SECONDS = 5.0  # how long our own credentials are used before they are read again
_FILES_BESIDE_STREAMS = 128
_log = logging.getLogger(__name__)


class StartError(Exception):
    """The gateway cannot start; the text is a sentence that says why."""


@dataclass(frozen=True)
class Setup:
    """What a process is made from. `worker` of `workers`; `folder` is for their sockets; `policy` has the
    laws that limit replicas while nobody else does, `kubernetes` is where pools are in a cluster."""

    settings: GatewayProcessSettings
    pools: Mapping[str, TargetSettings]
    scrape: ScrapeSettings
    tokenizers: Mapping[str, Tokenizer]
    worker: int = 0
    workers: int = 1
    folder: Path | None = None
    policy: PolicySettings = field(default_factory=PolicySettings)
    kubernetes: KubernetesSettings | None = None


class Worker:
    """See above. Make it in the event loop; `start`, then `stopped`."""

    def __init__(self, setup: Setup) -> None:
        settings = self._settings = setup.settings
        self._setup = setup
        self._loop = asyncio.get_running_loop()
        self._started_at = time.time()
        now = self._loop.time()
        self.name = settings.name if setup.workers == 1 else f"{settings.name}/{setup.worker}"
        self.is_ready = True
        self.refuses = False
        self.is_stopped = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._listeners: list[asyncio.Server] = []
        self._tls = TlsContexts()
        self._credentials: tuple[float, list[Header]] = (-_CREDENTIALS_SECONDS, [])
        self._windows = ToldWindows()
        self._law = OwnLaw(setup.policy)
        self._unseen: list[OutcomeWindow] = []  # by our own law
        self.siblings = Siblings(setup.folder, setup.worker, setup.workers)

        whole = settings.whole_admission
        quotas = Quotas(whole.tenant, part=1 / setup.workers)
        admission = Admission(part_of(whole, setup.workers), gateway=self.name, now=now, quotas=quotas)
        if settings.admission.standing_share == 1.0 and setup.workers > 1:
            # The workers share with each other only, and their parts are fixed: there is nobody to wait for.
            admission.take_grant(Grant(self.name, 0.0, now, 0, 0), now)
        self.admission = admission
        self.fleet = Fleet(now, setup.pools)
        self.steering = Steering(admission, self.fleet, self.name, settings.admission.mode, 1 / setup.workers)
        self.lookout = Lookout(
            self.fleet,
            setup.pools,
            setup.scrape,
            settings.upstream.auth,
            settings.upstream.tls,
            changed=self._replicas_changed,
            told=lambda readings: admission.set_readings(readings, self._loop.time()),
            kubernetes=setup.kubernetes,
        )
        upstream = settings.upstream
        withheld: frozenset[bytes] = frozenset() if upstream.pass_client_key else KEY_HEADERS
        if upstream.auth is not None:
            withheld |= {b"authorization"}
        self.around = Surroundings(
            settings=settings,
            loop=self._loop,
            door=Door(admission),
            pool=Pool(
                self._upstream_tls,
                connect_seconds=upstream.connect_timeout,
                idle_seconds=upstream.idle,
            ),
            fleet=self.fleet,
            sizer=Sizer(
                settings.output,
                dict(setup.tokenizers),
                self._ask_engine if settings.ask_engine_for_size else None,
            ),
            keyring=Keyring(settings.tenants),
            metrics=Metrics((*settings.tenants, ANYBODY)),
            withheld_headers=unwanted_by_engines(withheld),
            upstream_headers=self._upstream_headers,
        )
        public = Public(self.around, self)
        self.server = Server(public.judge, public.handle, Limits(body_bytes=int(settings.most_body)))
        private = Private(self)
        self.tenant_sync: TenantSync | None = None
        if settings.redis is not None:
            store = functools.partial(RedisStore, settings.redis)
            self.tenant_sync = TenantSync(settings.redis, admission, instance_of(self.name), store)
        self._control_server = Server(private.judge, private.handle, Limits(body_bytes=64 << 20))

    async def start(self) -> None:
        """Look, listen, answer. Raises StartError."""
        settings, setup = self._settings, self._setup
        kept = last_message.load(settings.control.state_file)
        if kept is not None:
            self.steering.take(kept, self._loop.time(), time.time(), from_disk=True)
        self._tasks = [
            asyncio.create_task(self.lookout.run()),
            asyncio.create_task(self._every_second()),
        ]
        if settings.heartbeat:
            self._tasks.append(asyncio.create_task(self._beat()))
        if self.tenant_sync is not None:
            self._tasks.append(asyncio.create_task(self.tenant_sync.run()))
        await self.siblings.listen(self._answer_sibling)
        shared = setup.workers > 1
        tls = None
        if settings.tls is not None:
            certificate = _certificate(settings.tls)
            tls = certificate.context
            self._tasks.append(asyncio.create_task(certificate.keep_renewing()))
        for server, address, context in (
            (self._control_server, settings.control.listen, None),
            (self.server, settings.listen, tls),
        ):
            host, port = host_and_port(address)
            try:
                self._listeners.append(await listen(server, host, port, tls=context, shared=shared))
            except OSError as error:
                raise StartError(f"cannot listen at {address}: {error.strerror or error}") from None

    @property
    def addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Where it listens: the public address, and that of the control interface."""
        control, public = (listener.sockets[0].getsockname()[:2] for listener in self._listeners)
        return public, control

    def stop(self) -> None:
        """Begin to stop; `is_stopped` is set at the end. Again: no change."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())

    def replace_tenants(self, tenants: Mapping[str, Tenant]) -> None:
        """Other keys from now on; what tenants may have stays as it was at the start."""
        self.around.keyring = Keyring(tenants)

    # -- what both addresses answer --------------------------------------------------------------------

    def readiness(self) -> Answer:
        """Whether new requests are welcome here, and why not."""
        why = ""
        if not self.is_ready:
            why = "the gateway is shutting down"
        elif not self._can_answer:
            why = "no engine is ready"
        if why:
            return refuse(503, why, "server_error", "not_ready")
        return Answer(200, (JSON,), b'{"status":"ready"}')

    @property
    def _can_answer(self) -> bool:
        """Whether requests are served, or refused as well here as anywhere: where there is no replica yet,
        they bring the first one. Where none can be reached, another gateway may reach them."""
        rotations = {spec.rotation for spec in self.fleet.specs(self._loop.time())}
        if self.steering.is_alone:
            return Rotation.IN in rotations or (not rotations and self.lookout.has_discovered)
        return Rotation.IN in rotations or rotations <= {Rotation.STARTING}

    async def metrics(self) -> Answer:
        """The page of all workers."""
        sheets = [self._sheet(), *map(_sheet_from, await self.siblings.ask("sheet", None))]
        whole = merged(sheets)
        whole["controlplane_gateway_workers"][()] = float(len(sheets))
        return Answer(200, ((b"content-type", CONTENT_TYPE),), page(whole))

    def has_control_token(self, request: Request) -> bool:
        """Whether the request shows the control interface's token. Nobody can where there is none."""
        token = self._settings.control.token
        try:
            return token is not None and bearer_is(request, token.read())
        except SecretError as error:
            _log.warning(f"control.token: {error}")
            return False

    # -- the control interface -------------------------------------------------------------------------

    async def outcomes(self, after: float) -> list[OutcomeWindow]:
        """Windows of all workers that ended after a Unix time."""
        self._collect()
        own = self._windows.after(after)
        others = await self.siblings.ask("outcomes", after)
        return [*own, *(msgspec.convert(window, OutcomeWindow) for windows in others for window in windows)]

    async def order(self, body: bytes) -> tuple[Judgement, ControlMessage]:
        """A control message has come: for all workers. Raises UnreadableError."""
        message = read_message(body)
        judgement = self._take(message)
        if judgement is Judgement.TAKEN:
            await self.siblings.ask("order", body)
            try:
                await asyncio.to_thread(last_message.keep, self._settings.control.state_file, body)
            except OSError as error:
                path = self._settings.control.state_file
                _log.warning(f"{path}: the control message cannot be kept: {error.strerror}")
        elif judgement is not Judgement.KNOWN:
            self.around.metrics.refuse_control(judgement.value)
        return judgement, self.steering.message or message

    def state(self) -> dict[str, object]:
        """What this worker was told and how it stands."""
        return {
            **msgspec.structs.asdict(
                self.steering.state(self._settings.name, self._settings.admission.standing_share)
            ),
            "worker": self.name,
            "grant": self.admission.share.grant,
            "status": self.admission.status(self._loop.time()),
        }

    # -- inside ----------------------------------------------------------------------------------------

    def _take(self, message: ControlMessage) -> Judgement:
        judgement = self.steering.take(message, self._loop.time(), time.time())
        self.lookout.is_alone = self.steering.is_alone
        if judgement is Judgement.TAKEN:
            self.admission.set_empty_pools(self.fleet.empty_pools())
            self.around.door.poll_soon()
        return judgement

    async def _answer_sibling(self, question: str, argument: Any) -> Any:
        match question:
            case "sheet":
                return [(name, list(samples.items())) for name, samples in self._sheet().items()]
            case "outcomes":
                self._collect()
                return self._windows.after(float(argument))
            case "order":
                with contextlib.suppress(UnreadableError):
                    self._take(read_message(bytes(argument)))
                return True
        return None

    def _replicas_changed(self) -> None:
        self.admission.set_empty_pools(self.fleet.empty_pools())
        if self.steering.look_at_replicas(self._loop.time()):
            self.around.door.poll_soon()

    def _collect(self) -> None:
        """Take the windows that are over."""
        now = self._loop.time()
        alone = self.steering.is_alone
        new = self._windows.add(self.admission.windows(now), time.time() - now, is_alone=alone)
        if self.steering.finds_limits:
            self._unseen += new
        self.around.metrics.add_windows(new)

    async def _every_second(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            now = self._loop.time()
            self.server.sweep(now)
            self._control_server.sweep(now)
            self.around.pool.sweep(now)
            self._collect()
            if self.steering.look(now, time.time()):
                _log.warning("the control messages have lapsed: own discovery, and own law on the limits")
                self.lookout.is_alone = True
            self._replicas_changed()
            self._look_at_limits(now)
            self.lookout.scrapes = self.steering.finds_limits
            self._cut_drained(now)

    def _look_at_limits(self, now: float) -> None:
        """Move the limits that nobody tells us."""
        finds, windows = self.steering.finds_limits, self._unseen
        self._unseen = []
        if finds:
            whole = self.admission.whole_view(windows)
            if not whole:  # they tell which limits to go on from
                return
            pages = self.lookout.take_pages()
            try:
                found = self._law.look(self.fleet.targets(), pages, whole, time.time())
            except Exception:  # whatever a page does to it, requests go on, and so do the limits
                _log.exception("our own law failed: it begins anew")
                self._law.forget()
                return
            self.steering.set_own_limits(found.limits, found.overcommit, now)
            self.around.door.poll_soon()
        elif self.lookout.scrapes:
            self._law.forget()
            self.lookout.take_pages()

    async def _beat(self) -> None:
        silence = self._settings.heartbeat
        while True:
            await asyncio.sleep(min(1.0, silence / 4))
            now = self._loop.time()
            for exchange in tuple(self.around.exchanges):
                exchange.beat(now, silence)

    def _cut_drained(self, now: float) -> None:
        """End what still runs on replicas whose time to drain is over."""
        deadline = self._settings.drain.deadline
        for exchange in tuple(self.around.exchanges):
            replica = None if exchange.ticket is None else exchange.ticket.replica
            since = None if replica is None else self.fleet.draining_since(replica.name)
            if since is not None and now - since >= deadline:
                exchange.cut(f"the engine is being drained and its {deadline:g} s are over")

    async def _stop(self) -> None:
        drain, around = self._settings.drain, self.around
        began = self._loop.time()
        self.is_ready = False
        _log.info(
            "stopping", extra={"fields": {"settle_seconds": drain.settle, "running": len(around.exchanges)}}
        )
        await asyncio.sleep(drain.settle)
        self.refuses = True
        self.server.wind_down()
        await self._until_idle(began + drain.deadline - self._loop.time())
        if around.exchanges:
            _log.warning("cut what still ran", extra={"fields": {"requests": len(around.exchanges)}})
        for exchange in tuple(around.exchanges):
            exchange.cut(f"the gateway is shutting down and its drain of {drain.deadline:g} s is over")
        await self._until_idle(1.0)
        await self.close()
        self.is_stopped.set()

    async def _until_idle(self, most_seconds: float) -> None:
        tasks = [exchange.task for exchange in self.around.exchanges]
        if tasks:
            await asyncio.wait(tasks, timeout=max(0.0, most_seconds))

    async def close(self) -> None:
        """Stop listening and looking, and hang up on everybody."""
        for listener in self._listeners:
            listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in (self.server, self._control_server):
            server.wind_down()
        self.siblings.close()
        self.around.door.close()
        self.around.pool.close()
        await asyncio.sleep(0)

    def _sheet(self) -> Sheet:
        now, unix = self._loop.time(), time.time()
        self._collect()
        message, pool = self.steering.message, self.around.pool
        process = {
            "start_timestamp_seconds": self._started_at,
            "ready": float(self.is_ready),
            "open_streams": float(len(self.around.exchanges)),
            "client_connections": float(len(self.server.connections)),
            "accepted_connections_total": float(self.server.accepted),
            "engine_connections": float(pool.open),
            "engine_connects_total": float(pool.connected),
            "engine_reuses_total": float(pool.reused),
            "alone": float(self.steering.is_alone),
            "limit_files": float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        }
        if self.tenant_sync is not None:
            process |= self.tenant_sync.figures()
        if message is not None:
            process["control_age_seconds"] = unix - self.steering.taken_at
            process["control_term"] = float(message.term)
        return self.around.metrics.sheet(self.admission.status(now), process)

    def _upstream_headers(self) -> list[Header]:
        auth = self._settings.upstream.auth
        if auth is None:
            return []
        now = self._loop.time()
        if now - self._credentials[0] >= _CREDENTIALS_SECONDS:
            try:
                self._credentials = (now, [(b"authorization", auth.authorization().encode("latin-1"))])
            except SecretError as error:
                raise UnreachableError(f"our credentials for it cannot be read: {error}") from None
        return self._credentials[1]

    def _upstream_tls(self, origin: Origin) -> tuple[ssl.SSLContext, str | None] | None:
        if origin.scheme != "https":
            return None
        tls = self._settings.upstream.tls
        try:
            return self._tls.get(tls, with_identity=True), tls.server_name
        except TlsError as error:
            raise UnreachableError(str(error)) from None

    async def _ask_engine(self, model: str, call: TokenizeCall) -> bytes | None:
        for name in self.fleet.replicas_of(model)[:1]:
            try:
                origin, headers = self.fleet.origin(name), self._upstream_headers()
            except UnreachableError:
                return None
            return await ask.post(self.around.pool, origin, call, headers, timeout_seconds=_TOKENIZE_SECONDS)
        return None


def part_of(settings: AdmissionSettings, workers: int) -> AdmissionSettings:
    """What one of several workers admits by: its part of every replica."""
    return settings.model_copy(update={"standing_share": settings.standing_share / workers})


def files_needed(most_streams: int) -> int:
    """Open files that so many streams at once take: one to the client and one to the engine, and some."""
    return 2 * most_streams + _FILES_BESIDE_STREAMS


def _sheet_from(packed: Any) -> Sheet:
    """A sheet as a sibling sends it."""
    return {name: {tuple(labels): value for labels, value in samples} for name, samples in packed}


def _certificate(tls: InboundTls) -> ServerCertificate:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(PROTOCOLS)
    try:
        certificate = ServerCertificate(context, tls.cert_file, tls.key_file)
        if tls.client_ca_file is not None:
            context.load_verify_locations(tls.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise StartError(f"cert_file {tls.cert_file} with key_file {tls.key_file}: {error}") from None
    return certificate
