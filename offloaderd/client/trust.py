"""TLS, certificate and token of a client; and the diagnosis of a failed handshake.

A token goes over TLS only, and one in a file is read for each call, as those that end within the hour are replaced.
Certificates are read when a channel is made; `files` says when that has to be done anew. gRPC does not tell why a
connection cannot be made, so after a failure the handshake is tried once more with Python's own TLS, which does.
"""

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc import aio

from offloaderd.core.errors import InvalidConfig, InvalidInput, Unauthenticated

DIAGNOSIS_S = 3.0
REFUSED_S = 0.5
"""How long a daemon may take to refuse our certificate after its own side of the handshake (TLS 1.3)."""


class NotTrusted(Unauthenticated):
    """One side does not trust the other's certificate, or one of them speaks no TLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The credentials of a client. `ca_file` None: the authorities of the system. A token is never printed."""

    tls: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    token_file: Path | None = None
    token: str | None = None

    def __repr__(self) -> str:
        """Return a text without the token."""
        return f"Trust(tls={self.encrypted}, token={self.has_token})"

    @property
    def has_token(self) -> bool:
        """Whether there is a token."""
        return self.token is not None or self.token_file is not None

    @property
    def encrypted(self) -> bool:
        """Whether to use TLS: it is set, or a file for TLS is given."""
        return self.tls or self.ca_file is not None or self.cert_file is not None

    def check(self) -> None:
        """Raise InvalidInput for credentials that do not fit together."""
        if (self.cert_file is None) != (self.key_file is None):
            raise InvalidInput("a certificate and its key go together", hint="give both --tls-cert and --tls-key")
        if self.has_token and not self.encrypted:
            raise InvalidInput(
                "a token is sent over TLS only, or anybody on the way could use it",
                hint="give --tls-ca FILE, or --tls for a certificate that the system trusts",
            )

    def bearer(self) -> str | None:
        """Return the token; that of the file has priority. Raises InvalidConfig."""
        if self.token_file is None:
            return self.token
        token = _read(self.token_file).decode("utf-8", "replace").strip()
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidConfig(f"{self.token_file} holds no token", hint="it must hold one token and nothing else")
        return token

    @property
    def renewed(self) -> bool:
        """Whether a call that was refused for its token may be let in with the next one."""
        return self.token_file is not None

    def files(self) -> tuple[object, ...]:
        """Return a value that changes when a certificate or key was replaced."""
        return tuple(_seen(path) for path in (self.ca_file, self.cert_file, self.key_file) if path is not None)

    def channel(self, address: str, options: Sequence[tuple[str, object]]) -> aio.Channel:
        """Return a channel that is not connected yet. Raises InvalidInput, InvalidConfig."""
        self.check()
        if not self.encrypted:
            return aio.insecure_channel(address, options=options)
        files = (self.ca_file, self.key_file, self.cert_file)
        ca, key, cert = (None if path is None else _read(path) for path in files)
        self._context()  # gRPC says nothing of files that it cannot use
        credentials = grpc.ssl_channel_credentials(ca, key, cert)
        token = self.bearer()
        if token is not None:
            shown = grpc.metadata_call_credentials(_Bearer(self, token), name="offloaderd token")
            credentials = grpc.composite_channel_credentials(credentials, shown)
        return aio.secure_channel(address, credentials, options=options)

    async def diagnosis(self, address: str) -> NotTrusted | None:
        """Return why a TLS connection fails; None if TLS is not the reason."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        try:
            async with asyncio.timeout(DIAGNOSIS_S):
                return await self._try(host, int(port), address)
        except (OSError, TimeoutError):
            return None

    async def _try(self, host: str, port: int, address: str) -> NotTrusted | None:
        context = self._context() if self.encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if not self.encrypted:  # it only finds out whether the server uses TLS; nothing is sent over it
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["h2"])
        try:
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
        except ssl.SSLError as error:
            return _explained(error, address) if self.encrypted else None
        try:
            if not self.encrypted:
                return NotTrusted(f"the daemon at {address} speaks TLS", hint="give --tls-ca FILE, or --tls")
            async with asyncio.timeout(REFUSED_S):
                greeted = await reader.read(1)
        except TimeoutError:
            return None
        except OSError:
            greeted = b""
        finally:
            writer.transport.abort()
        return None if greeted else self._refused(address)

    def _refused(self, address: str) -> NotTrusted:
        """Return the error for a connection that the daemon closed after the handshake, without a reason."""
        if self.cert_file is None:
            return NotTrusted(
                f"the daemon at {address} asks for a certificate, and none was shown",
                hint="give --tls-cert FILE and --tls-key FILE, signed by its tls.client_ca_file",
            )
        return NotTrusted(
            f"the daemon at {address} does not accept our certificate",
            hint=f"{self.cert_file} must be signed by the daemon's tls.client_ca_file, and not have expired",
        )

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file is not None else None)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.set_alpn_protocols(["h2"])
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file, password=_no_passphrase)
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise InvalidConfig(
                f"the files for TLS cannot be used: {str(reason).lower().replace('_', ' ')}",
                hint="--tls-ca takes certificates, --tls-cert and --tls-key one pair, as PEM without passphrase",
            ) from None
        return context


class _Bearer(grpc.AuthMetadataPlugin):
    """Sends the token in the file; the last valid one while the file is being replaced."""

    def __init__(self, trust: Trust, token: str) -> None:
        self._trust = trust
        self._token = token

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        """Answer for one call, in a thread of gRPC's own."""
        with suppress(InvalidConfig):
            self._token = self._trust.bearer() or self._token
        callback((("authorization", f"Bearer {self._token}"),), None)


def _seen(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes with the content of a file; see access/certificates.py."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _no_passphrase() -> str:
    raise ValueError("the key is protected by a passphrase")


def _explained(error: ssl.SSLError, address: str) -> NotTrusted:
    """Return the error of a failed handshake, with a hint."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotTrusted(
            f"the daemon at {address} cannot be trusted: {error.verify_message}",
            hint="--tls-ca names the authority that signed its certificate (tls.cert_file of the daemon)",
        )
    reason = str(error.reason or error).upper()
    if "WRONG_VERSION" in reason or "RECORD_LAYER" in reason:
        return NotTrusted(f"the daemon at {address} speaks no TLS", hint="leave the options for TLS and tokens away")
    return NotTrusted(f"no TLS connection to the daemon at {address}: {reason.lower().replace('_', ' ')}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from None
