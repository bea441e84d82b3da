"""DIGEST-MD5: the RFC's own example, what bookies send, what is refused, and that both sides prove what they know."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from offloaderd.bookkeeper.connections.handshake import DigestMd5, parse_challenge
from offloaderd.bookkeeper.wire.protocol import BadAnswer
from offloaderd.core.errors import Denied, InvalidConfig, OffloaderError
from tests.unit.bookkeeper.digest_server import DigestServer

RFC_CHALLENGE = (
    b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'  # section 4
)


def begun(
    username: str = "chris",
    password: str = "secret",  # noqa: S107 - the RFC's
    cnonce: str = "OA6MHXh6VqTrRk",
    uri: str = "imap/elwood.innosoft.com",
) -> DigestMd5:
    """Return an exchange whose first, empty token has been sent."""
    exchange = DigestMd5(username, password, cnonce, uri=uri)
    assert exchange.respond(b"") == b""
    return exchange


def directives(token: bytes) -> dict[str, str]:
    """Return what a token says."""
    return {name: values[0] for name, values in parse_challenge(token).items()}


def test_the_example_of_the_rfc() -> None:
    """Its challenge gets its response, and its last word completes the exchange."""
    exchange = begun()
    told = directives(exchange.respond(RFC_CHALLENGE))
    assert told["response"] == "d388dad90d4bbd760a152321f2143af7"
    assert (told["username"], told["realm"], told["nonce"]) == ("chris", "elwood.innosoft.com", "OA6MG9tEQGm2hh")
    assert (told["cnonce"], told["nc"], told["qop"], told["charset"]) == ("OA6MHXh6VqTrRk", "00000001", "auth", "utf-8")
    assert told["digest-uri"] == "imap/elwood.innosoft.com"
    assert not exchange.complete
    assert exchange.respond(b"rspauth=ea40f60335c427b5527b84dbabcdfffd") == b""
    assert exchange.complete


@pytest.mark.parametrize("last", [b"rspauth=ea40f60335c427b5527b84dbabcdfffe", b"", b"rspauth=", b"x=1", b"\x60\x01"])
def test_a_bookie_that_does_not_know_the_password_is_not_believed(last: bytes) -> None:
    """Its last word has to be the one that only who knows the password can say."""
    exchange = begun()
    exchange.respond(RFC_CHALLENGE)
    with pytest.raises(BadAnswer, match="password"):
        exchange.respond(last)
    assert not exchange.complete


@pytest.mark.parametrize(
    ("challenge", "error", "says"),
    [
        (b"", Denied, "GSSAPI"),
        (b"\x60\x28\x06\x09*\x86H\x86\xf7\x12\x01\x02\x02", Denied, "GSSAPI"),
        (b'realm="r",qop="auth",algorithm=md5-sess', Denied, "DIGEST-MD5"),
        (b'nonce="n",algorithm=sha-256', Denied, "DIGEST-MD5"),
        (b'nonce="n",qop="auth-conf,auth-int",algorithm=md5-sess', Denied, "auth-conf or auth-int"),
        (b'nonce="n",nonce="m",algorithm=md5-sess', BadAnswer, "2 times"),
        (b'nonce="' + b"n" * 2048 + b'",algorithm=md5-sess', BadAnswer, "2048"),
    ],
    ids=["empty", "kerberos", "no-nonce", "other-hash", "only-encrypted", "twice", "long"],
)
def test_other_ways_are_refused_by_name(challenge: bytes, error: type[OffloaderError], says: str) -> None:
    """What is no DIGEST-MD5 challenge is a matter of settings, what breaks its rules a broken bookie."""
    with pytest.raises(error) as caught:
        begun().respond(challenge)
    assert says in str(caught.value)


def test_the_password_is_in_no_text() -> None:
    """Neither the options nor what is sent show it."""
    assert b"secret" not in begun().respond(RFC_CHALLENGE)


@pytest.mark.parametrize("username", ["", "a\nb", "a\0"])
def test_names_that_cannot_be_said_are_refused(username: str) -> None:
    """An empty name, or one with control characters, is a mistake of the settings."""
    with pytest.raises(InvalidConfig):
        DigestMd5(username, "p", "c")


def test_every_exchange_has_a_nonce_of_its_own() -> None:
    """The same password proves itself differently each time."""
    proofs = {begun(cnonce=cnonce).respond(RFC_CHALLENGE) for cnonce in ("one", "two")}
    assert len(proofs) == 2


NAMES = st.text(st.characters(min_codepoint=0x20, exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(NAMES, st.text(st.characters(exclude_categories=["Cs"]), max_size=20), NAMES)
@example('a"b\\c', "päss", "bookkeeper")
@example("Юзер", "пароль", "a,b=c")
@settings(max_examples=60)
def test_a_server_that_knows_the_password_is_convinced(username: str, password: str, realm: str) -> None:
    """Any name, password and realm, quotes and other alphabets included, is proven to a server that checks."""
    server = DigestServer({username: password}, realm=realm)
    exchange = begun(username, password, uri="bookkeeper/bookkeeper")
    exchange.respond(server.check(exchange.respond(server.challenge)))
    assert exchange.complete


def test_a_wrong_password_does_not_convince() -> None:
    """The server of these tests does check."""
    server = DigestServer({"user": "right"})
    with pytest.raises(PermissionError):
        server.check(begun("user", "wrong", uri="bookkeeper/bookkeeper").respond(server.challenge))


@given(st.binary(max_size=60))
@example(b',,  nonce="a" , algorithm=md5-sess ,')
@settings(max_examples=100)
def test_any_bytes_are_a_challenge_or_an_error_of_ours(challenge: bytes) -> None:
    """Nothing that a bookie sends raises anything but our own errors, and answers hold nothing unescaped."""
    exchange = begun()
    try:
        told = exchange.respond(challenge)
    except OffloaderError:
        return
    assert re.search(rb"response=[0-9a-f]{32}", told)
