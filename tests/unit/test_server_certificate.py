"""A server's certificate is renewed while it runs, and a bad renewal changes nothing."""

import logging
import socket
import ssl
import threading
from pathlib import Path

import pytest
import trustme

from controlplane.server_certificate import ServerCertificate


class Site:
    """A folder with certificate and key, and what a new client is shown of them."""

    def __init__(self, folder: Path) -> None:
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.authority = trustme.CA()

    def issue(self) -> trustme.LeafCert:
        return self.authority.issue_cert("localhost")

    def write(self, issued: trustme.LeafCert) -> None:
        issued.cert_chain_pems[0].write_to_path(self.cert)
        issued.private_key_pem.write_to_path(self.key)

    def served(self) -> ServerCertificate:
        return ServerCertificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.cert, self.key)

    def shown(self, certificate: ServerCertificate) -> bytes:
        """The certificate, DER, that a client gets; ssl.SSLError where it does not hold."""
        ours, theirs = socket.socketpair()

        def serve() -> None:
            with certificate.context.wrap_socket(ours, server_side=True) as wrapped:
                wrapped.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        trusting = ssl.create_default_context(cadata=self.authority.cert_pem.bytes().decode())
        with trusting.wrap_socket(theirs, server_hostname="localhost") as wrapped:
            found = wrapped.getpeercert(binary_form=True)
        thread.join()
        assert found is not None
        return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.write(made.issue())
    return made


def der(issued: trustme.LeafCert) -> bytes:
    return ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())


def test_a_renewed_certificate_counts_for_the_next_connection(site: Site) -> None:
    certificate = site.served()
    before = site.shown(certificate)
    certificate.renew()
    assert site.shown(certificate) == before
    renewed = site.issue()
    site.write(renewed)
    certificate.renew()
    assert site.shown(certificate) == der(renewed) != before


def test_half_a_renewal_changes_nothing_until_it_is_whole(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = site.served()
    before = site.shown(certificate)
    renewed = site.issue()
    renewed.cert_chain_pems[0].write_to_path(site.cert)  # its key is still the old one
    with caplog.at_level(logging.INFO):
        certificate.renew()
        certificate.renew()
        assert site.shown(certificate) == before
        site.key.unlink()
        certificate.renew()
        renewed.private_key_pem.write_to_path(site.key)
        certificate.renew()
    assert site.shown(certificate) == der(renewed)
    said = ["not renewed" in line for line in caplog.messages]
    assert said == [True, False], "said once, and that it is over"


def test_what_cannot_be_used_at_the_start_is_refused(site: Site) -> None:
    site.key.write_text("no key")
    with pytest.raises(ssl.SSLError):
        site.served()
    site.key.unlink()
    with pytest.raises(FileNotFoundError):
        site.served()
