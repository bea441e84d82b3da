"""Keys of an OpenID provider (JWKS, RFC 7517): parsed, and read again from their address in a steady pace.

Only public keys are taken, each with one family of algorithms, so that none is ever used as a secret. A token with the
id of an unknown key has the keys read again, at most once in `UNKNOWN_S`: providers announce new keys by using them.
When they cannot be read, the last ones stay in use.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import jwt
import structlog
from cryptography.hazmat.primitives.asymmetric import rsa

from offloaderd.access.tokens import CURVES, RSA_BITS_MIN, TokenKey
from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidConfig, OffloaderError

log = structlog.get_logger(__name__)

BYTES_MAX = 1 << 20
KEYS_MAX = 100
REFRESH_S = 300.0
"""Pause between two reads of an address."""
UNKNOWN_S = 10.0
"""Least pause before a read because of an unknown key, or after a failure."""
RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
BY_CURVE = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}


def is_address(given: str) -> bool:
    """Whether keys are read over the network rather than from a file."""
    return given.startswith(("https://", "http://"))


def parse(data: bytes, origin: str) -> tuple[TokenKey, ...]:
    """Return the keys for signatures. Raises InvalidConfig for what is no set of keys, or has none that can be used."""
    hint = "it is the JSON document at the provider's jwks_uri"
    try:
        found = json.loads(data) if len(data) <= BYTES_MAX else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("keys"), list):
        raise InvalidConfig(f"{origin} holds no set of keys (JWKS)", hint=hint)
    keys = tuple(key for one in found["keys"][:KEYS_MAX] if (key := _key(one)) is not None)
    if not keys:
        raise InvalidConfig(f"{origin} holds no public key for signatures", hint=hint)
    return keys


def _key(given: Any) -> TokenKey | None:  # noqa: ANN401 - JSON of somebody else
    """Return one key, None for another use, another kind, or one that is too weak."""
    if not isinstance(given, dict) or given.get("use", "sig") != "sig":
        return None
    kind, named = given.get("kty"), given.get("alg")
    if not isinstance(named, str | None):
        return None
    algorithm = BY_CURVE.get(str(given.get("crv"))) if kind == "EC" else named or "RS256" if kind == "RSA" else None
    if algorithm not in {*RSA_ALGORITHMS, *CURVES} or named not in {None, algorithm} or "d" in given:
        return None
    try:
        key = jwt.PyJWK.from_dict(given, algorithm=algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < RSA_BITS_MIN:
        return None
    key_id = given.get("kid")
    return TokenKey(key, (str(algorithm),), key_id if isinstance(key_id, str) else "")


class RemoteKeys:
    """The keys at an address; none until they were read for the first time."""

    def __init__(self, address: str, fetch: Callable[[str], Awaitable[bytes]], clock: Clock) -> None:
        """`fetch` returns the document at an address. Raises Transient."""
        self.address = address
        self.value: tuple[TokenKey, ...] = ()
        self.failing = False
        self._fetch = fetch
        self._clock = clock
        self._read_s: float | None = None
        self._unknown = False

    def missed(self) -> None:
        """Note a token with the id of an unknown key."""
        self._unknown = True

    @property
    def due(self) -> bool:
        """Whether the keys are to be read now."""
        if self._read_s is None:
            return True
        pause_s = UNKNOWN_S if self._unknown or self.failing else REFRESH_S
        return self._clock.monotonic() - self._read_s >= pause_s

    async def refresh(self) -> bool:
        """Read the keys if that is due; return whether they have changed. A failure is logged."""
        if not self.due:
            return False
        self._read_s, self._unknown = self._clock.monotonic(), False
        try:
            found = parse(await self._fetch(self.address), self.address)
        except OffloaderError as error:
            if not self.failing:
                log.warning("keys.not_reloaded", address=self.address, error=str(error))
            self.failing = True
            return False
        changed, self.failing = found != self.value, False
        if changed:
            log.info("keys.reloaded", address=self.address, key_ids=[key.key_id for key in found])
        self.value = found
        return changed
