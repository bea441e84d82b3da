"""A ZooKeeper with TLS, users and access lists: who gets in, who does not, and that nodes are the daemon's own."""

from __future__ import annotations

import gc
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import SecretStr

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Denied, InvalidConfig, Transient
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.standalone.ports import free_ports
from offloaderd.standalone.zookeeper import ZooKeeperOptions, zookeeper
from tests.authority import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

PASSWORD = "canary-zookeeper"


@asynccontextmanager
async def secure_server(directory: Path, ca: Authority) -> AsyncIterator[tuple[str, str]]:
    """Run a server with users; gives its plain address, and the one for TLS, which knows certificates."""
    clock = SystemClock()
    plain, secure = free_ports(2, clock)
    pair = ca.issue("zookeeper", "localhost", "127.0.0.1")
    key = load_pem_private_key(pair.key.read_bytes(), None)
    store = directory / "server.pem"
    store.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + pair.cert.read_bytes())
    users = directory / "jaas.conf"
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    users.write_text(f'Server {{ {module} required user_offloaderd="{PASSWORD}" user_other="other"; }};')
    options = ZooKeeperOptions(
        directory=directory / "zookeeper",
        port=plain,
        settings=(
            ("secureClientPort", str(secure)),
            ("secureClientPortAddress", "127.0.0.1"),
            ("serverCnxnFactory", "org.apache.zookeeper.server.NettyServerCnxnFactory"),
            ("ssl.keyStore.location", str(store)),
            ("ssl.trustStore.location", str(ca.file)),
            ("ssl.clientAuth", "want"),
            ("authProvider.sasl", "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"),
            ("authProvider.x509", "org.apache.zookeeper.server.auth.X509AuthenticationProvider"),
        ),
        jvm_flags=(f"-Djava.security.auth.login.config={users}",),
    )
    async with zookeeper(options, clock):
        yield f"127.0.0.1:{plain}", f"127.0.0.1:{secure}"


def store(servers: str, root: str, **security: Any) -> ZooKeeperStore:  # noqa: ANN401 - MetadataSettings' own fields
    """Return a store that connects like this."""
    return ZooKeeperStore(servers, root, MetadataSettings(session_timeout_s=10, connect_timeout_s=6, **security))


@pytest.fixture
def sockets_collected() -> Iterator[None]:
    """Collect what kazoo leaves open after a handshake that fails here, and not in the next test."""
    yield
    gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("sockets_collected")
async def test_nodes_are_open_to_their_creator_alone(tmp_path: Path) -> None:
    """By digest, SASL and certificate: we read and write what we made, nobody and another one do not."""
    ca, evil = Authority(tmp_path), Authority(tmp_path, "evil")
    ours, theirs, outsider = ca.issue("offloaderd"), ca.issue("other"), evil.issue("offloaderd")
    async with secure_server(tmp_path, ca) as (plain, secure):
        tls: dict[str, Any] = {"tls": True, "tls_ca_file": str(ca.file)}
        for number, (servers, mine, other) in enumerate(
            (
                (
                    plain,
                    {"username": "offloaderd", "password": PASSWORD},
                    {"username": "offloaderd", "password": "wrong"},
                ),
                (
                    secure,
                    {"username": "offloaderd", "password": PASSWORD, "auth": "sasl", **tls},
                    {"username": "other", "password": "other", "auth": "sasl", **tls},
                ),
                (
                    secure,
                    {"tls_cert_file": str(ours.cert), "tls_key_file": str(ours.key), **tls},
                    {"tls_cert_file": str(theirs.cert), "tls_key_file": str(theirs.key), **tls},
                ),
            )
        ):
            root = f"/private-{number}"
            async with store(servers, root, acl="creator", **mine) as own:
                await own.create("/a/b", b"1")
                assert await own.replace("/a/b", b"2", 0) == 1
                assert not (await own.about("/a/b")).writable
            for foreign in ({}, other):
                with pytest.raises(Denied, match="access list") as caught:
                    async with store(plain if not foreign else servers, root, **foreign) as theirs_store:
                        await theirs_store.get("/a/b")
                assert PASSWORD not in str(caught.value)
                assert "metadata.username" in caught.value.hint
        for trust in (
            {"tls": True, "tls_ca_file": str(evil.file)},
            {**tls, "tls_cert_file": str(outsider.cert), "tls_key_file": str(outsider.key)},
            {},
        ):
            with pytest.raises(Transient, match="no ZooKeeper server answered"):
                async with store(secure, "/x", **trust):
                    pytest.fail("connected")
        with pytest.raises(InvalidConfig, match="is not there"):
            async with store(secure, "/x", tls=True, tls_ca_file=str(tmp_path / "nowhere")):
                pytest.fail("connected")


def test_the_password_is_not_shown() -> None:
    """Neither by a traceback nor by a log line."""
    assert PASSWORD not in repr(MetadataSettings(username="u", password=SecretStr(PASSWORD)))
