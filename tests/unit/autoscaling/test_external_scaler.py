"""KEDA's side of the external scaler: a gRPC client of its own over mutual TLS, with bytes made by hand."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import fleet_fakes as fakes
import grpc
import msgspec
import pytest
import trustme
from cryptography import x509
from test_advice import scaled

from controlplane.api import external_scaler
from controlplane.api.external_scaler import ExternalScaler
from controlplane.api.external_scaler_settings import ExternalScalerSettings
from controlplane.api.server import ApiServer, ApiStartError
from controlplane.api.settings import ApiSettings
from controlplane.signals.decision import Standing


def text(number: int, value: str | bytes) -> bytes:
    """A field of bytes on the wire; all here are shorter than 128."""
    raw = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(raw)]) + raw


def ref(**metadata: str) -> bytes:
    pairs = (text(3, text(1, key) + text(2, value)) for key, value in metadata.items())
    return text(1, "chat-engines") + text(2, "serving") + b"".join(pairs)


def whole(number: int, value: int) -> bytes:
    return bytes([number << 3, value])


def real(number: int, value: float) -> bytes:
    return bytes([number << 3 | 1]) + struct.pack("<d", value)


class Certificates:
    def __init__(self, folder: Path) -> None:
        self.authority, keda, another = trustme.CA(), trustme.CA(), trustme.CA()
        self.client, self.stranger = keda.issue_cert("keda"), another.issue_cert("keda")
        self.strangers = another.cert_pem.bytes()
        self.folder = folder
        self.renew()
        keda.cert_pem.write_to_path(folder / "ca.pem")
        self.settings = ExternalScalerSettings(
            listen="127.0.0.1:0",
            tls_cert=folder / "cert.pem",
            tls_key=folder / "key.pem",
            client_ca=folder / "ca.pem",
        )

    def renew(self) -> int:
        """Another certificate of the server, from now on; its serial number."""
        server = self.authority.issue_cert("127.0.0.1")
        server.private_key_pem.write_to_path(self.folder / "key.pem")
        server.cert_chain_pems[0].write_to_path(self.folder / "cert.pem")
        return x509.load_pem_x509_certificate(server.cert_chain_pems[0].bytes()).serial_number

    async def shown(self, port: int) -> int:
        """The serial number of the certificate that a new connection is shown."""

        def look() -> int:
            context = ssl.create_default_context(cadata=self.authority.cert_pem.bytes().decode())
            context.set_alpn_protocols(["h2"])
            with (
                socket.create_connection(("127.0.0.1", port), 60.0) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
            ):
                shown = wrapped.getpeercert(binary_form=True)
            assert shown is not None
            return x509.load_der_x509_certificate(shown).serial_number

        return await asyncio.to_thread(look)

    def channel(self, port: int, shown: trustme.LeafCert | None) -> grpc.aio.Channel:
        key = None if shown is None else shown.private_key_pem.bytes()
        chain = None if shown is None else shown.cert_chain_pems[0].bytes()
        trusted = self.authority.cert_pem.bytes()
        return grpc.aio.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(trusted, key, chain))


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@asynccontextmanager
async def serving(
    daemon: fakes.FakeDaemon, settings: ExternalScalerSettings
) -> AsyncIterator[ExternalScaler]:
    scaler = ExternalScaler(daemon, settings)
    scaler.start()
    try:
        async with asyncio.timeout(60):
            if daemon.how.leads:
                await listening(scaler, True)
            yield scaler
    finally:
        await scaler.close()


async def listening(scaler: ExternalScaler, wanted: bool) -> None:
    """Until it listens, or does not: a matter of turns of the loop."""
    while bool(scaler.port) is not wanted:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)


async def ask(channel: grpc.aio.Channel, method: str, request: bytes) -> bytes:
    return await channel.unary_unary(f"/externalscaler.ExternalScaler/{method}")(request)


async def refused(channel: grpc.aio.Channel, method: str, request: bytes) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as told:
        await ask(channel, method, request)
    return told.value.code(), told.value.details() or ""


async def test_keda_gets_the_wish_as_its_wire_has_it(certificates: Certificates) -> None:
    async with (
        serving(scaled(11, 10), certificates.settings) as scaler,
        certificates.channel(scaler.port, certificates.client) as channel,
    ):
        assert await ask(channel, "IsActive", ref(pool="chat")) == whole(1, 1)
        spec = text(1, text(1, "replicas") + whole(2, 1) + real(3, 1.0))
        assert await ask(channel, "GetMetricSpec", ref(pool="chat")) == spec
        asked = text(1, ref(pool="chat", scalerAddress="x:1")) + text(2, "replicas")
        value = text(1, text(1, "replicas") + whole(2, 12) + real(3, 12.0))
        assert await ask(channel, "GetMetrics", asked) == value
        exact = text(1, ref(pool="chat", tolerance="0")) + text(2, "replicas")
        value = text(1, text(1, "replicas") + whole(2, 11) + real(3, 11.0))
        assert await ask(channel, "GetMetrics", exact) == value


async def test_a_step_down_is_told_in_fractions_and_to_old_versions_in_whole_replicas(
    certificates: Certificates,
) -> None:
    async with (
        serving(scaled(9, 10), certificates.settings) as scaler,
        certificates.channel(scaler.port, certificates.client) as channel,
    ):
        told = await ask(channel, "GetMetrics", text(1, ref(pool="chat")))
        assert told == text(1, text(1, "replicas") + whole(2, 9) + real(3, 8.01))


async def test_in_observe_it_is_active_with_the_count_that_is_there(certificates: Certificates) -> None:
    daemon = scaled(0, 4, standing=Standing.OBSERVE)
    async with (
        serving(daemon, certificates.settings) as scaler,
        certificates.channel(scaler.port, certificates.client) as channel,
    ):
        assert await ask(channel, "IsActive", ref(pool="chat")) == whole(1, 1)
        told = await ask(channel, "GetMetrics", text(1, ref(pool="chat")) + text(2, "replicas"))
        assert told == text(1, text(1, "replicas") + whole(2, 4) + real(3, 4.0))


async def test_what_cannot_be_answered_is_an_error_that_says_why(certificates: Certificates) -> None:
    async with (
        serving(scaled(0, 0, standing=Standing.OBSERVE), certificates.settings) as scaler,
        certificates.channel(scaler.port, certificates.client) as channel,
    ):
        code, why = await refused(channel, "IsActive", ref(pool="chat"))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "no replica is seen" in why
        code, why = await refused(channel, "GetMetrics", text(1, ref(pool="nope")))
        assert (code, why) == (grpc.StatusCode.NOT_FOUND, "there is no pool 'nope'")
        code, why = await refused(channel, "GetMetricSpec", ref())
        assert (code, why) == (grpc.StatusCode.INVALID_ARGUMENT, "the trigger's metadata need `pool`")
        code, why = await refused(channel, "IsActive", ref(pool="chat", tolerance="ten"))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "tolerance is a share" in why
        code, _ = await refused(channel, "StreamMetricSpec", ref(pool="chat"))
        assert code is grpc.StatusCode.UNIMPLEMENTED, "then KEDA asks for the specification instead"


async def test_who_shows_no_certificate_or_a_strangers_hears_nothing(certificates: Certificates) -> None:
    async with serving(scaled(9, 4), certificates.settings) as scaler:
        for shown in (None, certificates.stranger):
            async with certificates.channel(scaler.port, shown) as channel:
                code, why = await refused(channel, "IsActive", ref(pool="chat"))
                assert code is grpc.StatusCode.UNAVAILABLE
                assert "chat" not in why
        async with grpc.aio.insecure_channel(f"127.0.0.1:{scaler.port}") as channel:
            assert (await refused(channel, "IsActive", ref(pool="chat")))[0] is grpc.StatusCode.UNAVAILABLE


async def test_the_stream_tells_the_first_state_and_each_change(certificates: Certificates) -> None:
    daemon = scaled(2, 2)
    async with (
        serving(daemon, certificates.settings) as scaler,
        certificates.channel(scaler.port, certificates.client) as channel,
    ):
        stream = channel.unary_stream("/externalscaler.ExternalScaler/StreamIsActive")(ref(pool="chat"))
        assert await stream.read() == whole(1, 1)
        daemon.seen = scaled(3, 2).seen
        daemon.tick()
        daemon.seen = scaled(0, 2).seen
        daemon.tick()
        assert await stream.read() == b"", "false is the default, which the wire leaves out"
        stream.cancel()


async def test_it_listens_only_while_it_leads(certificates: Certificates) -> None:
    daemon = scaled(2, 2)
    daemon.how = msgspec.structs.replace(daemon.how, leads=False)
    async with serving(daemon, certificates.settings) as scaler:
        daemon.tick()
        await asyncio.sleep(0)
        assert scaler.port == 0
        daemon.how = msgspec.structs.replace(daemon.how, leads=True)
        daemon.tick()
        await listening(scaler, True)
        async with certificates.channel(scaler.port, certificates.client) as channel:
            assert await ask(channel, "IsActive", ref(pool="chat")) == whole(1, 1)
            daemon.how = msgspec.structs.replace(daemon.how, leads=False)
            daemon.tick()
            await listening(scaler, False)
            assert (await refused(channel, "IsActive", ref(pool="chat")))[0] is grpc.StatusCode.UNAVAILABLE


async def test_streams_leave_room_for_questions_on_the_one_connection_that_keda_has(
    certificates: Certificates,
) -> None:
    async with (
        serving(scaled(2, 2), certificates.settings) as scaler,
        certificates.channel(scaler.port, certificates.client) as channel,
    ):

        def opened() -> grpc.aio.UnaryStreamCall:
            return channel.unary_stream("/externalscaler.ExternalScaler/StreamIsActive")(ref(pool="chat"))

        streams = [opened() for _ in range(external_scaler._MOST_STREAMS)]
        for stream in streams:
            assert await stream.read() == whole(1, 1)
        assert await ask(channel, "IsActive", ref(pool="chat")) == whole(1, 1)
        one_more = opened()
        with pytest.raises(
            grpc.aio.AioRpcError, match=f"are {external_scaler._MOST_STREAMS} streams already"
        ):
            await one_more.read()
        assert await ask(channel, "GetMetrics", text(1, ref(pool="chat")))
        streams[0].cancel()
        while scaler._streams == external_scaler._MOST_STREAMS:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
        again = opened()
        assert await again.read() == whole(1, 1), "one that ended leaves its place"


async def test_a_renewed_certificate_counts_from_the_next_connection_on(certificates: Certificates) -> None:
    async with serving(scaled(2, 2), certificates.settings) as scaler:
        first = await certificates.shown(scaler.port)
        renewed = certificates.renew()
        assert first != renewed
        assert await certificates.shown(scaler.port) == renewed
        async with certificates.channel(scaler.port, certificates.client) as channel:
            assert await ask(channel, "IsActive", ref(pool="chat")) == whole(1, 1)


async def test_another_authority_counts_from_the_next_connection_on(certificates: Certificates) -> None:
    async with serving(scaled(2, 2), certificates.settings) as scaler:
        certificates.settings.client_ca.write_bytes(certificates.strangers)
        async with certificates.channel(scaler.port, certificates.stranger) as channel:
            assert await ask(channel, "IsActive", ref(pool="chat")) == whole(1, 1)
        async with certificates.channel(scaler.port, certificates.client) as channel:
            assert (await refused(channel, "IsActive", ref(pool="chat")))[0] is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_that_is_half_renewed_leaves_the_old_one(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(scaled(2, 2), certificates.settings) as scaler:
        first, key = await certificates.shown(scaler.port), certificates.settings.tls_key
        old = key.read_bytes()
        renewed = certificates.renew()
        whole_key = key.read_bytes()
        key.write_bytes(old)
        assert await certificates.shown(scaler.port) == first, "a key of another certificate"
        key.unlink()
        for _ in range(2):
            assert await certificates.shown(scaler.port) == first
        (told,) = (record.message for record in caplog.records if "keeps" in record.message)
        assert told.endswith(
            f"keeps the certificates that it has: [Errno 2] No such file or directory: '{key}'"
        )
        key.write_bytes(whole_key)
        assert await certificates.shown(scaler.port) == renewed


async def test_a_certificate_that_is_not_there_is_told_at_the_start(certificates: Certificates) -> None:
    gone = certificates.settings.model_copy(update={"client_ca": Path("/nowhere/ca.pem")})
    server = ApiServer(fakes.FakeDaemon(), ApiSettings(listen="127.0.0.1:0", external_scaler=gone))
    try:
        with pytest.raises(ApiStartError, match=r"/nowhere/ca\.pem: No such file"):
            await server.start()
    finally:
        await server.stop()
