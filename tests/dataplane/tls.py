"""A TLS entrance to a server on a unix socket, with a certificate made for the occasion."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a store's server")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, pem, plain))
    return certificate, secret


class Entrance:
    """Listens at 127.0.0.1:``port``, speaks TLS there, and passes everything on to the unix socket *behind*."""

    def __init__(self, behind: Path, certificate: Path, key: Path) -> None:
        self._behind = str(behind)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.handshakes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with suppress(OSError), self._context.wrap_socket(plain, server_side=True) as outside:
            self.handshakes += 1
            with socket.socket(socket.AF_UNIX) as inside:
                inside.connect(self._behind)
                answers = threading.Thread(target=_pass_on, args=(inside, outside), daemon=True)
                answers.start()
                _pass_on(outside, inside)
                answers.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
