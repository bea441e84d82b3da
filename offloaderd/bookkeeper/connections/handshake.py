"""From an address to a connection that may be asked: TCP, then TLS, then authentication, as far as they are set.

Both are asked for in v3, whatever is spoken afterwards: a bookie takes v2 after v3 on one connection, never the other
way round. TLS begins on the plain socket, with nothing else in flight. Without either nothing at all is sent here.

After TLS a bookie that also wants authentication says so at once, by a second answer to START_TLS: it is passed over.
A bookie whose SASL does not like a token does not answer it. So behind each token goes a request that is answered in
any case, be it with "who are you?": if that answer comes first, the token was dropped.

Rules: what only an operator can put right is Denied, with what to set; the rest is Transient. Whatever goes wrong, or
cancelled, no socket is left open.
"""

import asyncio
import ssl
from collections.abc import Callable

from offloaderd.bookkeeper.connections.connection import TLS_HINT, Answer, BookieConnection, ConnectionLost, Wire
from offloaderd.bookkeeper.connections.sasl import DigestMd5
from offloaderd.bookkeeper.connections.window import Window
from offloaderd.bookkeeper.metadata.registration import BookieAddress
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire import v3
from offloaderd.bookkeeper.wire.auth import SASL_PLUGIN, AuthToken
from offloaderd.bookkeeper.wire.framing import LAST_ENTRY
from offloaderd.bookkeeper.wire.status import BadAnswer, Status, failure
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Denied, InvalidConfig, Transient

SASL_HINT = "compare bookkeeper.sasl_username and sasl_password with the bookies' JAAS file, saslJaasClientAllowedIds"
MECHANISM_HINT = "only DIGEST-MD5 is supported by the plugin `sasl`, not GSSAPI (Kerberos)"
ANY_LEDGER = 0
"""Whether it exists does not matter: asking is all that counts."""


class Handshake:
    """How connections to all bookies of a cluster are made."""

    def __init__(self, options: BookkeeperSettings, *, clock: Clock) -> None:
        """Read the certificates. Raises InvalidConfig."""
        self._clock = clock
        self._tls = tls_context(options) if options.tls else None
        self._user, self._password = options.sasl_username, options.sasl_password

    async def connect(
        self, bookie_id: str, address: BookieAddress, wire: Wire, make: Callable[[Wire], BookieConnection]
    ) -> BookieConnection:
        """Return a connection that is ready for requests; `make` gives a new one for a protocol.

        Raises Transient, Denied. How long it may take is the caller's to bound.
        """
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
        answer = await _ask(connection, number, v3.encode_start_tls(number))
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
            answer = await self._tell(bookie_id, connection, token)
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

    async def _tell(self, bookie_id: str, connection: BookieConnection, token: bytes) -> Answer:
        """Send a token and return the answer to it. Raises Denied when there is none, TimedOut, ConnectionLost."""
        window = Window(2)
        number, probe_number = connection.new_id(), connection.new_id()
        for _ in range(2):
            await window.enter()
        answer = connection.send(number, v3.encode_auth(number, AuthToken(SASL_PLUGIN, token)), window)
        probe = connection.send(probe_number, v3.encode_read(probe_number, ANY_LEDGER, LAST_ENTRY), window)
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
    """Return what TLS with bookies is made by. Raises InvalidConfig for files that cannot be used."""
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


async def _ask(connection: BookieConnection, number: int, request: bytes) -> Answer:
    window = Window(1)
    await window.enter()
    return await connection.send(number, request, window)


def _refused(bookie_id: str, answer: Answer) -> Exception:
    if isinstance(answer, v3.AuthAnswer | v3.Refusal):
        if answer.status is Status.UNAUTHORISED:
            return Denied(f"bookie {bookie_id} refused the SASL user", hint=SASL_HINT)
        return failure(answer.status, answer.code, bookie=bookie_id, what="a way to authenticate")
    return BadAnswer(f"bookie {bookie_id} sent {type(answer).__name__} in answer to an authentication")
