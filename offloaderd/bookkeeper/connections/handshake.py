"""Making a connection: TCP, then TLS, then authentication by SASL DIGEST-MD5, as far as they are set.

Both use v3, whichever protocol follows: a bookie accepts v2 after v3 on one connection, never the other way round. TLS
begins on the plain socket, with nothing else in flight. Without either nothing is sent here.

After TLS a bookie that also wants authentication sends a second answer to START_TLS, which is dropped. A bookie whose
SASL refuses a token does not answer it. So each token is followed by a request that is always answered, if only with
UNAUTHORISED: if that answer comes first, the token was refused.

Rules: an error that only an operator can mend is Denied, with the settings to change; the rest is Transient. No socket
stays open after an error, or when cancelled.
"""

import asyncio
import hashlib
import hmac
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from offloaderd.bookkeeper.connections.connection import TLS_HINT, Answer, BookieConnection, ConnectionLost, Wire
from offloaderd.bookkeeper.metadata import BookieAddress
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire import v3
from offloaderd.bookkeeper.wire.protocol import LAST_ENTRY, SASL_PLUGIN, AuthToken, BadAnswer, Status, failure
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Denied, InvalidConfig, Transient

SASL_HINT = "compare bookkeeper.sasl_username and sasl_password with the bookies' JAAS file, saslJaasClientAllowedIds"
MECHANISM_HINT = "only DIGEST-MD5 is supported by the plugin `sasl`, not GSSAPI (Kerberos)"
ANY_LEDGER = 0
"""It need not exist: any answer will do."""

CHALLENGE_BYTES_MAX: Final = 2048
"""The RFC's own limit."""

_DIRECTIVE = re.compile(r'[\s,]*([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+))\s*(?=,|$)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_FIRST_USE: Final = "00000001"
_QUALITY: Final = "auth"


class DigestMd5:
    """One SASL exchange (RFC 2831) from the client's side: authentication, no encryption. Pure.

    `cnonce` must be new for each, and random. `uri` is part of the digest: BookKeeper's own name on both sides, for any
    bookie. The mechanism is old, and MD5 is a weak hash: use it within TLS on networks that others use.
    """

    def __init__(self, username: str, password: str, cnonce: str, *, uri: str = "bookkeeper/bookkeeper") -> None:
        """Raise InvalidConfig for a user name that the exchange cannot carry."""
        if any(ord(character) < 0x20 for character in username) or not username:
            raise InvalidConfig("the name of a SASL user has to be there and may not contain control characters")
        self._username, self._password, self._uri = username, password, uri
        self._cnonce = cnonce
        self._expected: str | None = None
        self._begun = False
        self.complete = False

    def respond(self, challenge: bytes) -> bytes:
        """Return the answer to a challenge: b"" to the first, which is empty, and to the last, then it is `complete`.

        Raises Denied when the bookie wants another mechanism, BadAnswer for an invalid challenge, or when the bookie
        does not prove that it knows the password.
        """
        if not self._begun:
            self._begun = True
            return b""
        if self._expected is None:
            return self._prove(parse_challenge(challenge))
        self._check(parse_challenge(challenge))
        return b""

    def _prove(self, challenge: Mapping[str, Sequence[str]]) -> bytes:
        nonce = _only(challenge, "nonce")
        if nonce is None or _only(challenge, "algorithm") != "md5-sess":
            raise Denied("the bookie wants to authenticate by something else than DIGEST-MD5", hint=MECHANISM_HINT)
        qualities = re.split(r"[\s,]+", _only(challenge, "qop") or _QUALITY)
        if _QUALITY not in qualities:
            raise Denied(f"the bookie wants SASL with {' or '.join(qualities)}, only {_QUALITY} is supported")
        realm = next(iter(challenge.get("realm", ())), "")
        secret = self._secret(realm, nonce)
        proof = self._digest(secret, nonce, f"AUTHENTICATE:{self._uri}")
        self._expected = self._digest(secret, nonce, f":{self._uri}")
        directives = {
            "charset": "utf-8",
            "username": _quoted(self._username),
            "realm": _quoted(realm),
            "nonce": _quoted(nonce),
            "nc": _FIRST_USE,
            "cnonce": _quoted(self._cnonce),
            "digest-uri": _quoted(self._uri),
            "response": proof,
            "qop": _QUALITY,
        }
        return ",".join(f"{name}={value}" for name, value in directives.items()).encode()

    def _check(self, challenge: Mapping[str, Sequence[str]]) -> None:
        proof = _only(challenge, "rspauth") or ""
        if not hmac.compare_digest(proof.encode(), (self._expected or "").encode()):
            raise BadAnswer("the bookie did not prove that it knows the password: it may not be what it says it is")
        self.complete = True

    def _secret(self, realm: str, nonce: str) -> str:
        user = b":".join(map(_latin, (self._username, realm, self._password)))
        return _md5(_md5(user) + f":{nonce}:{self._cnonce}".encode()).hex()

    def _digest(self, secret: str, nonce: str, action: str) -> str:
        parts = (secret, nonce, _FIRST_USE, self._cnonce, _QUALITY, _md5(action.encode()).hex())
        return _md5(":".join(parts).encode()).hex()


def parse_challenge(challenge: bytes) -> dict[str, list[str]]:
    """Return the directives of a challenge, by name in lower case; raises BadAnswer for a long one.

    A challenge of another mechanism (GSSAPI's is binary) has no directives.
    """
    if len(challenge) > CHALLENGE_BYTES_MAX:
        raise BadAnswer(f"a SASL challenge of {len(challenge)} bytes, expected {CHALLENGE_BYTES_MAX} at most")
    text = challenge.decode(errors="replace")
    found: dict[str, list[str]] = {}
    at = 0
    while at < len(text.rstrip(", \t\r\n")):
        directive = _DIRECTIVE.match(text, at)
        if directive is None:
            return {}
        name, quoted, plain = directive.groups()
        found.setdefault(name.lower(), []).append(plain if quoted is None else _ESCAPED.sub(r"\1", quoted))
        at = directive.end()
    return found


def _only(challenge: Mapping[str, Sequence[str]], name: str) -> str | None:
    """Return the value of a directive that may stand once; None without one."""
    values = challenge.get(name, ())
    if len(values) > 1:
        raise BadAnswer(f"a SASL challenge that says {name} {len(values)} times")
    return next(iter(values), None)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _latin(text: str) -> bytes:
    """Return a name or password in Latin-1 if possible, else in UTF-8, as the RFC requires."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


class Handshake:
    """Makes connections to all bookies of a cluster."""

    def __init__(self, options: BookkeeperSettings, *, clock: Clock) -> None:
        """Read the certificates. Raises InvalidConfig."""
        self._clock = clock
        self._tls = tls_context(options) if options.tls else None
        self._user, self._password = options.sasl_username, options.sasl_password

    async def connect(
        self, bookie_id: str, address: BookieAddress, wire: Wire, make: Callable[[Wire], BookieConnection]
    ) -> BookieConnection:
        """Return a ready connection, by `make` of a protocol; the caller bounds the time. Raises Transient, Denied."""
        loop = asyncio.get_running_loop()
        first = wire if self._tls is None and self._user is None else Wire.V3
        try:
            _, connection = await loop.create_connection(lambda: make(first), address.host, address.port)
        except OSError as error:
            raise Transient(f"bookie {bookie_id} cannot be reached at {address}: {error}") from error
        try:
            if self._tls is not None:
                await self._encrypt(bookie_id, connection, self._tls, address.host)
            if self._user is not None and self._password is not None:
                exchange = DigestMd5(self._user, self._password.get_secret_value(), self._clock.uuid().hex)
                await self._authenticate(bookie_id, connection, exchange)
        except BaseException:
            connection.end(ConnectionLost(f"bookie {bookie_id}: the handshake ended without success"))
            raise
        connection.speak(wire)
        return connection

    async def _encrypt(self, bookie_id: str, connection: BookieConnection, context: ssl.SSLContext, host: str) -> None:
        number = connection.new_id()
        answer = await connection.send(number, v3.encode_start_tls(number), None)
        if not isinstance(answer, v3.TlsAnswer):
            raise Denied(f"bookie {bookie_id} offers no TLS", hint=TLS_HINT)
        loop = asyncio.get_running_loop()
        try:
            encrypted = await loop.start_tls(connection.transport, connection, context, server_hostname=host)
        except ssl.SSLError as error:
            raise Denied(f"bookie {bookie_id} and we do not agree on TLS: {error}", hint=TLS_HINT) from error
        except OSError as error:
            raise Transient(f"bookie {bookie_id} ended the connection while TLS began: {error}") from error
        if encrypted is None:
            raise ConnectionLost(f"bookie {bookie_id} ended the connection while TLS began")
        connection.resume(encrypted, number)

    async def _authenticate(self, bookie_id: str, connection: BookieConnection, exchange: DigestMd5) -> None:
        challenge = b""
        while True:
            token = exchange.respond(challenge)
            if exchange.complete:
                return
            answer = await self._exchange(bookie_id, connection, token)
            if not isinstance(answer, v3.AuthAnswer) or answer.status is not Status.OK:
                raise _refused(bookie_id, answer)
            if answer.token.disabled:
                return
            if answer.token.plugin != SASL_PLUGIN:
                raise Denied(
                    f"bookie {bookie_id} authenticates by the plugin {answer.token.plugin!r}",
                    hint=f"only {SASL_PLUGIN!r} is supported, with DIGEST-MD5",
                )
            challenge = answer.token.payload

    async def _exchange(self, bookie_id: str, connection: BookieConnection, token: bytes) -> Answer:
        """Send a token and return the answer to it. Raises Denied when there is none, TimedOut, ConnectionLost."""
        number, probe_number = connection.new_id(), connection.new_id()
        answer = connection.send(number, v3.encode_auth(number, AuthToken(SASL_PLUGIN, token)), None)
        probe = connection.send(probe_number, v3.encode_read(probe_number, ANY_LEDGER, LAST_ENTRY), None)
        try:
            await asyncio.wait({probe})
            lost = probe.exception()
            if answer.done():
                return answer.result()
            if lost is not None:
                raise lost
        finally:
            answer.cancel()
            probe.cancel()
        raise Denied(f"bookie {bookie_id} refused the SASL user", hint=SASL_HINT if token else MECHANISM_HINT)


def tls_context(options: BookkeeperSettings) -> ssl.SSLContext:
    """Return the TLS context for bookies. Raises InvalidConfig for files that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=options.tls_ca_file)
        if options.tls_cert_file is not None:
            context.load_cert_chain(options.tls_cert_file, options.tls_key_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfig(
            f"TLS with bookies cannot be set up: {error}",
            hint="look at bookkeeper.tls_ca_file, tls_cert_file and tls_key_file: PEM, readable, the key that fits",
        ) from error
    context.check_hostname = options.tls_hostname_check
    return context


def _refused(bookie_id: str, answer: Answer) -> Exception:
    if isinstance(answer, v3.AuthAnswer | v3.Refusal):
        if answer.status is Status.UNAUTHORISED:
            return Denied(f"bookie {bookie_id} refused the SASL user", hint=SASL_HINT)
        return failure(answer.status, answer.code, bookie=bookie_id, what="a way to authenticate")
    return BadAnswer(f"bookie {bookie_id} sent {type(answer).__name__} in answer to an authentication")
