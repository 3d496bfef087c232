"""rediss:// for real: a certificate that is checked, a password from the environment, large blocks both ways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from dataplane import connect, open_plane
from dataplane.backends.redis_server import CHUNK_BYTES
from schemas.errors import StoreError
from tests.dataplane.servers import Server
from tests.dataplane.stores import pipeline
from tests.dataplane.tls import Entrance, certificate


@pytest.fixture
def entrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Entrance]:
    """A server with a password behind TLS; the certificate lies in ``cert.pem``."""
    server = Server("--requirepass", "pass/word")
    entrance = Entrance(server.socket, *certificate(tmp_path))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    yield entrance
    entrance.close()
    server.close()


def test_a_store_behind_tls_with_certificate_and_password_from_the_environment(
    entrance: Entrance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    monkeypatch.setenv("OPD_REDIS_PASSWORD", "pass/word")
    tokens = np.arange(CHUNK_BYTES // 2, dtype=np.int32)  # two chunks
    with pipeline(open_plane(f"rediss://127.0.0.1:{entrance.port}/0?prefix=tls")) as plane:
        plane.put("train", ["a", "b"], {"input_ids": [tokens, []]})
        with connect(plane.address) as other:
            assert other.get("train", ["b", "a"], ["input_ids"]).values("input_ids") == [[], tokens.tolist()]
    assert entrance.handshakes >= 2


def test_certificate_and_password_in_the_url_and_neither_is_shown(entrance: Entrance, tmp_path: Path) -> None:
    ca = quote(str(tmp_path / "cert.pem"), safe="")
    with open_plane(f"rediss://:pass%2Fword@127.0.0.1:{entrance.port}/0?prefix=tls&ssl_ca_certs={ca}") as plane:
        assert plane.url == f"rediss://127.0.0.1:{entrance.port}/0?prefix=tls"
        plane.event("here")


def test_a_certificate_that_nobody_trusts_is_refused_at_once(entrance: Entrance) -> None:
    url = f"rediss://:pass%2Fword@127.0.0.1:{entrance.port}/0?patience_s=1000"
    with pytest.raises(StoreError, match=r"certificate is not trusted.*ssl_ca_certs=FILE in the URL, or with SSL_CERT"):
        open_plane(url)
    assert entrance.handshakes == 0
