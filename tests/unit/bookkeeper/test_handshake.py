"""TLS and SASL with bookies: who is let in, who is not believed, and what an operator is told."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.bookkeeper.connections.connection import BookieConnection, ConnectionLost, TimedOut, Wire
from offloaderd.bookkeeper.connections.handshake import tls_context
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire.protocol import BadAnswer
from offloaderd.core.errors import Closed, Denied, InvalidConfig, OffloaderError, Transient
from tests.unit.bookkeeper import wire
from tests.unit.bookkeeper.digest_server import DigestServer
from tests.unit.bookkeeper.pool_world import ENTRIES, LEDGER, World, world

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.bookkeeper.fake_bookie import Asked

CERTIFICATES = Path(__file__).with_name("certificates")
USER: dict[str, Any] = {"sasl_username": "offloaderd", "sasl_password": "s3cret"}


def file(name: str) -> str:
    """Return the path of a test certificate or key."""
    return str(CERTIFICATES / name)


TLS: dict[str, Any] = {"tls": True, "tls_ca_file": file("authority.pem")}


def bookie_side(name: str = "bookie", *, wants_client: bool = False) -> ssl.SSLContext:
    """Return a bookie's side of TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=file("authority.pem"))
    context.load_cert_chain(file(f"{name}.pem"), file(f"{name}.key"))
    context.verify_mode = ssl.CERT_REQUIRED if wants_client else ssl.CERT_NONE
    return context


async def all_ways(it: World) -> None:
    """Ask in each way, over both connections."""
    assert await it.pool.read(it.id, LEDGER, 1) == ENTRIES[1]
    assert await it.batch(2, 3) == ENTRIES[2:5]
    assert await it.pool.last_known(it.id, LEDGER) == (ENTRIES[9], -1)


async def test_everything_but_the_beginning_is_encrypted() -> None:
    """START_TLS is sent in the clear on each connection, then certificates are checked, then requests go out."""
    async with world(BookkeeperSettings(**TLS)) as it:
        it.bookie.tls = bookie_side()
        await all_ways(it)
        assert [asked.operation for asked in it.bookie.requests] == ["tls", "read", "batch", "tls", "last"]
        assert all(session.transport.get_extra_info("ssl_object") for session in it.bookie.sessions)


async def test_large_answers_come_through_tls() -> None:
    """An entry of 5 MiB, far above a record of TLS."""
    async with world(BookkeeperSettings(**TLS)) as it:
        it.bookie.tls = bookie_side()
        it.bookie.stored[LEDGER, 10] = bytes(5 << 20)
        assert len(await it.pool.read(it.id, LEDGER, 10)) == 5 << 20


async def test_a_bookie_may_ask_for_our_certificate() -> None:
    """With it we are let in."""
    ours = TLS | {"tls_cert_file": file("daemon.pem"), "tls_key_file": file("daemon.key")}
    async with world(BookkeeperSettings(**ours)) as it:
        it.bookie.tls = bookie_side(wants_client=True)
        await all_ways(it)


async def test_without_a_certificate_that_is_wanted_the_operator_is_told() -> None:
    """In TLS 1.3 a client hears that it is refused only after the handshake, if it hears anything but the end."""
    async with world(BookkeeperSettings(**TLS)) as it:
        it.bookie.tls = bookie_side(wants_client=True)
        with pytest.raises((Denied, ConnectionLost)) as caught:
            await it.pool.read(it.id, LEDGER, 1)
        assert "tlsClientAuthentication" in caught.value.hint
        assert it.value("offloaderd_bookies_avoided") == 1


@pytest.mark.parametrize(("answered", "error"), [(False, Denied), (True, ConnectionLost)])
async def test_an_alert_of_tls_is_for_the_operator_before_the_first_answer(
    answered: bool, error: type[OffloaderError]
) -> None:
    """Later it is a connection that broke."""
    ends: list[OffloaderError] = []
    connection = BookieConnection(
        "b", Wire.V2, BookkeeperSettings(), on_bytes=lambda _: None, on_probe=lambda _: None, on_end=ends.append
    )
    connection.answered = answered
    connection.connection_lost(ssl.SSLError(1, "tlsv13 alert certificate required"))
    assert [type(end) for end in ends] == [error]
    assert "certificate required" in ends[0].message


@pytest.mark.parametrize(
    ("tls", "certificate", "says"),
    [
        ({"tls": True, "tls_ca_file": file("stranger.pem")}, "bookie", "verify failed"),
        ({"tls": True}, "bookie", "verify failed"),
        (TLS, "elsewhere", "certificate is not valid for"),
        (TLS, None, "no TLS"),
    ],
    ids=["another-authority", "system-authorities", "another-host", "no-tls"],
)
async def test_a_bookie_that_cannot_be_trusted_is_asked_nothing(
    tls: dict[str, Any], certificate: str | None, says: str
) -> None:
    """An operator has to put it right: Denied, with the settings to look at."""
    async with world(BookkeeperSettings(**tls)) as it:
        it.bookie.tls = None if certificate is None else bookie_side(certificate)
        with pytest.raises(Denied) as caught:
            await it.pool.read(it.id, LEDGER, 1)
        assert says in str(caught.value)
        assert "bookkeeper.tls" in caught.value.hint
        assert [asked.operation for asked in it.bookie.requests] == ["tls"]
        await it.ended()
        with pytest.raises(Denied, match="no request for another"):
            await it.pool.read(it.id, LEDGER, 1)


async def test_the_host_is_not_compared_when_told_so() -> None:
    """The authority still has to have signed."""
    async with world(BookkeeperSettings(**TLS, tls_hostname_check=False)) as it:
        it.bookie.tls = bookie_side("elsewhere")
        await all_ways(it)


@pytest.mark.parametrize(
    "tls",
    [
        {"tls_ca_file": file("nothing.pem")},
        {"tls_ca_file": file("daemon.key")},
        TLS | {"tls_cert_file": file("daemon.pem"), "tls_key_file": file("bookie.key")},
        TLS | {"tls_cert_file": file("daemon.pem")},
    ],
    ids=["missing", "no-certificate", "another-key", "no-key"],
)
def test_files_that_cannot_be_used_are_a_mistake_of_the_settings(tls: dict[str, Any]) -> None:
    """It is found when the pool is made, not when the first bookie is asked."""
    with pytest.raises(InvalidConfig, match=r"bookkeeper\.tls_ca_file"):
        tls_context(BookkeeperSettings(**tls))


@pytest.mark.parametrize("tls", [{}, TLS], ids=["plain", "tls"])
async def test_a_user_is_let_in(tls: dict[str, Any]) -> None:
    """After both proofs; in v3, whatever is spoken afterwards."""
    async with world(BookkeeperSettings(**USER, **tls)) as it:
        it.bookie.users = DigestServer({"offloaderd": "s3cret"})
        it.bookie.tls = bookie_side()
        await all_ways(it)
        auth = [asked for asked in it.bookie.requests if asked.operation == "auth"]
        assert [(asked.token.pluginName, bool(asked.token.payload)) for asked in auth] == [
            ("sasl", False),
            ("sasl", True),
        ] * 2
        assert len({asked.token.payload for asked in auth}) == 3, "each exchange has a nonce of its own"


async def test_a_bookie_without_authentication_takes_any_client() -> None:
    """It says so, and that is enough."""
    async with world(BookkeeperSettings(**USER)) as it:
        await all_ways(it)


async def test_without_credentials_nothing_but_requests_is_sent() -> None:
    """A bookie that wants some says so, and the operator is told which settings are missing."""
    async with world() as it:
        it.bookie.users = DigestServer({})
        with pytest.raises(Denied) as caught:
            await it.pool.read(it.id, LEDGER, 1)
        assert "bookkeeper.sasl_username" in caught.value.hint
        assert [asked.operation for asked in it.bookie.requests] == ["read"]


async def test_a_wrong_password_is_for_the_operator() -> None:
    """Denied, and the password is in no message."""
    async with world(BookkeeperSettings(**USER)) as it:
        it.bookie.users = DigestServer({"offloaderd": "another"})
        with pytest.raises(Denied, match="refused the SASL user") as caught:
            await it.pool.read(it.id, LEDGER, 1)
        assert "s3cret" not in repr(caught.value) + str(caught.value)
        assert "JAAS" in caught.value.hint
        await it.ended()


async def test_another_plugin_is_named() -> None:
    """What a site has written for itself cannot be spoken, and the message says what it is."""
    async with world(BookkeeperSettings(**USER)) as it:
        it.bookie.users, it.bookie.plugin = DigestServer({}), "homemade"
        with pytest.raises(Denied, match="homemade"):
            await it.pool.read(it.id, LEDGER, 1)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda asked: wire.v3_auth(asked.number, "sasl", b"\x60\x28"), Denied),
        (lambda asked: wire.v3_auth(asked.number, "sasl", b"", code=502), Denied),
        (lambda asked: wire.v3_refusal(asked.number, 5, 501), Transient),
        (lambda asked: wire.v3_refusal(asked.number, 5, 0), BadAnswer),
        (lambda asked: wire.v3_read(asked.number, 1, 1), BadAnswer),
        (lambda asked: b"", Denied),
    ],
    ids=["kerberos", "refused", "trouble", "good-and-empty", "another-answer", "dropped"],
)
async def test_whatever_comes_in_place_of_a_challenge(
    answer: Callable[[Asked], bytes], error: type[OffloaderError]
) -> None:
    """Each has its error, and no connection stays open."""
    async with world(BookkeeperSettings(**USER, connect_timeout_s=0.1)) as it:
        it.bookie.on_auth = lambda asked: asked.reply(answer(asked))
        (outcome,) = await it.outcomes([it.pool.read(it.id, LEDGER, 1)])
        assert outcome is error
        await it.ended()
        assert it.value("offloaderd_bookie_requests_in_flight") == 0


async def test_a_bookie_that_does_not_prove_itself_is_not_asked() -> None:
    """It let us in without knowing the password: it may be somebody else."""
    async with world(BookkeeperSettings(**USER)) as it:
        server = DigestServer({"offloaderd": "s3cret"})

        def impostor(asked: Asked) -> None:
            asked.session.trusted = True
            token = b"rspauth=" + b"0" * 32 if asked.token.payload else server.challenge
            asked.reply(wire.v3_auth(asked.number, "sasl", token))

        it.bookie.on_auth = impostor
        with pytest.raises(BadAnswer, match="password"):
            await it.pool.read(it.id, LEDGER, 1)
        assert [asked.operation for asked in it.bookie.requests] == ["auth", "last"] * 2


async def test_a_handshake_that_breaks_off_is_one_failure() -> None:
    """Not two: one for the connection and one for the handshake."""
    async with world(BookkeeperSettings(**USER)) as it:
        it.bookie.on_auth = lambda asked: asked.session.cut()
        with pytest.raises(ConnectionLost):
            await it.pool.read(it.id, LEDGER, 1)
        assert it.value("offloaderd_bookies_avoided") == 1
        await it.clock.advance(0.2)
        assert it.value("offloaderd_bookies_avoided") == 0


async def test_the_handshake_has_its_time() -> None:
    """A bookie that says yes to TLS and then nothing is given up and avoided; who gives up first leaves no socket."""
    async with world(BookkeeperSettings(**TLS, connect_timeout_s=0.1)) as it:
        it.bookie.on_tls = lambda asked: asked.reply(wire.v3_start_tls(asked.number))
        with pytest.raises(TimedOut, match="no connection within"):
            await it.pool.read(it.id, LEDGER, 1)
        assert it.value("offloaderd_bookies_avoided") == 1
        await it.ended()
        await it.clock.advance(1)
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(it.pool.read(it.id, LEDGER, 1))
            await it.bookie.asked(2)
            reader.cancel()
        await it.ended()
        assert it.in_flight == 0


async def test_the_end_of_the_pool_does_not_wait_for_a_handshake() -> None:
    """Who waits for a connection gets Closed at once, and its socket is gone."""
    async with world(BookkeeperSettings(**TLS)) as it:
        it.bookie.on_tls = lambda asked: asked.reply(wire.v3_start_tls(asked.number))
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(it.outcomes([it.pool.read(it.id, LEDGER, 1), it.pool.read(it.id, LEDGER, 2)]))
            await it.bookie.asked()
            await it.settle()
            await it.pool.__aexit__(None, None, None)
            await it.settle()
            assert waiting.done()
        assert waiting.result() == [Closed] * 2
        await it.ended()


async def test_the_end_of_the_pool_comes_before_a_connection_that_is_being_opened() -> None:
    """It is closed as soon as it is there."""
    async with world() as it, asyncio.TaskGroup() as group:
        waiting = group.create_task(it.outcomes([it.pool.read(it.id, LEDGER, 1)]))
        await it.clock.sleep(0)
        await it.clock.sleep(0)
        await it.pool.__aexit__(None, None, None)
        assert await waiting == [Closed]
        await it.settle()
        await it.ended()
        assert it.bookie.requests == []
