"""Where bookies are: published endpoints, ids that are addresses, opaque ids, IPv6."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.bookkeeper.metadata import BookieAddress, is_bookie_id, parse_legacy_id, resolve_address
from offloaderd.core.errors import CorruptData, NotFound
from offloaderd.format.pb.bookkeeper.registration_pb2 import BookieServiceInfo
from tests.golden import bookkeeper as golden


def published(host: str, port: int, *, protocol: str = "bookie-rpc", extensions: tuple[str, ...] = ()) -> bytes:
    """Return a registration with an operator's endpoint first and then the given one."""
    info = BookieServiceInfo()
    info.endpoints.add(id="http", port=8000, host="h", protocol="http")
    info.endpoints.add(id="bookie", port=port, host=host, protocol=protocol, extensions=extensions, auth=["sasl"])
    info.properties.add(key="zone", value="a")
    return info.SerializeToString()


def test_a_live_bookies_registration_is_read() -> None:
    """The vector of a bookie with an opaque id."""
    assert resolve_address(golden.BOOKIE_ID, golden.BOOKIE) == BookieAddress("127.0.0.1", 23185)


def test_the_storage_endpoint_counts() -> None:
    """Other protocols are passed over; TLS is what the endpoint's extensions say."""
    assert resolve_address("x", published("bk", 1, extensions=("tls",))) == BookieAddress("bk", 1, tls=True)
    assert resolve_address("x", published("bk", 1)) == BookieAddress("bk", 1)
    with pytest.raises(NotFound, match="bookie-rpc"):
        resolve_address("x:1", published("bk", 1, protocol="grpc"))


@pytest.mark.parametrize(
    ("bookie_id", "host", "port", "shown"),
    [
        ("127.0.0.1:3181", "127.0.0.1", 3181, "127.0.0.1:3181"),
        ("bk-0.bk.pulsar.svc:3181", "bk-0.bk.pulsar.svc", 3181, "bk-0.bk.pulsar.svc:3181"),
        ("fe80::1:3181", "fe80::1", 3181, "[fe80::1]:3181"),
        ("[2001:db8::7]:65535", "2001:db8::7", 65535, "[2001:db8::7]:65535"),
        ("::1:1", "::1", 1, "[::1]:1"),
    ],
)
def test_old_ids_are_addresses(bookie_id: str, host: str, port: int, shown: str) -> None:
    """With an empty registration, or none, the id is split at its last colon."""
    for content in (b"", None):
        address = resolve_address(bookie_id, content)
        assert (address, str(address)) == (BookieAddress(host, port), shown)


@pytest.mark.parametrize(
    "bookie_id", ["bk-opaque.5", "bk:", ":3181", "a:0", "a:65536", "a b:1", "a:x", "a:-1", "a:123456"]
)
def test_opaque_ids_are_not(bookie_id: str) -> None:
    """An id that is no address needs a registration."""
    assert parse_legacy_id(bookie_id) is None
    with pytest.raises(NotFound, match="not registered"):
        resolve_address(bookie_id, None)


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_published_ipv6_hosts(host: str) -> None:
    """Brackets round a published host are not part of it."""
    assert resolve_address("x", published(host, 3181)) == BookieAddress("::1", 3181)


@pytest.mark.parametrize(
    ("host", "port"), [("", 1), ("a", 0), ("a", 65536), ("a", -1), ("a b", 1), ("a/b", 1), ("a\n", 1)]
)
def test_addresses_that_cannot_be_are_damage(host: str, port: int) -> None:
    """Nothing is connected to that is not a host and a port."""
    with pytest.raises(CorruptData) as caught:
        resolve_address("x", published(host, port), path="/ledgers/available/x")
    assert caught.value.key == "/ledgers/available/x"


@given(st.binary(min_size=1, max_size=60))
def test_arbitrary_registrations_give_typed_errors(content: bytes) -> None:
    """Noise is an address, damage, or nothing to connect to."""
    with suppress(CorruptData, NotFound):
        assert resolve_address("x", content).port > 0


@pytest.mark.parametrize(
    ("text", "good"),
    [("a:1", True), ("bk0test", True), ("[::1]:3181", True), ("a" * 255, True), ("a" * 256, False), ("", False),
     ("a/b", False), ("..", False), (".", False), ("ReadOnly", False), ("a b", False), ("ä", False), ("a\n", False)],
)  # fmt: skip
def test_bookie_ids(text: str, good: bool) -> None:
    """An id is a safe part of a path and not the folder of read-only bookies."""
    assert is_bookie_id(text) is good
