"""Pulsar's tokens: JSON web tokens signed with a secret (HMAC) or a private key (RSA, EC).

Settings and forms are those of AuthenticationProviderToken and AuthTokenUtils in Pulsar 4. A key is `file:PATH`,
`data:;base64,...`, a path, or base64 itself; its bytes are the raw secret, or a public key in DER (PEM is accepted
too). One point is stricter than Pulsar: a public key has exactly the configured algorithm. The algorithm is never taken
from the token, `none` cannot be configured, and a public key is never used as a secret. PyJWT checks form and
signature; dates are compared with the injected clock.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, unquote_to_bytes

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from offloaderd.access.roles import checked_identity
from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidConfig, InvalidInput, Unauthenticated

if TYPE_CHECKING:
    from jwt.types import Options

TOKEN_CHARS_MAX = 16 * 1024
GROUPS_MAX = 100
"""Groups of a token that are read."""
SECRET_BYTES_MIN = {"HS256": 32, "HS384": 48, "HS512": 64}
"""A secret is used with every HMAC for which it is long enough (RFC 7518, 3.2)."""
HINT = "get a new token, signed with the key that this daemon knows"
CURVES = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
RSA_BITS_MIN = 2048
SIGNATURE_ONLY = cast("Options", {f"verify_{claim}": False for claim in ("exp", "nbf", "iat", "aud", "sub", "jti")})
"""The claims are checked here, by the injected clock and Pulsar's rules."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """Key that checks signatures, and the only algorithms that are accepted for it.

    `key_id` is that of a key of a provider (JWKS), empty if it has none there, None for a key of the settings.
    """

    key: Any
    algorithms: tuple[str, ...]
    key_id: str | None = None

    def __repr__(self) -> str:
        """Never the key."""
        return f"TokenKey({', '.join(self.algorithms)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """Claim that names the caller, and the audience that a token must have (empty: any).

    `issuer` is that of tokens that a provider's key signed. `groups_claim` names the caller's groups (empty: none); a
    claim within others is written with dots.
    """

    claim: str = "sub"
    audience_claim: str = "aud"
    audience: str = ""
    issuer: str = ""
    groups_claim: str = ""
    leeway_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Bearer:
    """Name and expiry of a token (seconds since 1970; None: never), and the index of its key (0: the newest)."""

    name: str
    expires_s: float | None
    key: int = 0
    groups: tuple[str, ...] = ()


def path_of_key(given: str) -> Path | None:
    """Return the file of a key; None when the text itself is the key."""
    if given.startswith("data:"):
        return None
    if given.startswith("file:"):
        return Path(unquote(given.removeprefix("file:").removeprefix("//")))
    try:
        return Path(given) if Path(given).is_file() else None
    except (OSError, ValueError):
        return None  # no path can be that long


def key_bytes(given: str, setting: str) -> bytes:
    """Return the bytes of a configured key. Raises InvalidConfig, which never shows any of it."""
    hint = "write file:///PATH, data:;base64,..., a path, or the key in base64, as for Pulsar's brokers"
    path = path_of_key(given)
    if path is not None:
        try:
            return path.read_bytes()
        except OSError as error:
            raise InvalidConfig(f"{setting}: cannot read {path}: {error.strerror}", hint=hint) from None
    if given.startswith("data:"):
        head, comma, body = given.removeprefix("data:").partition(",")
        if not comma:
            raise InvalidConfig(f"{setting}: data: without a comma before the data", hint=hint)
        if not head.endswith(";base64"):
            return unquote_to_bytes(body)
        given = unquote(body)
    try:
        return base64.b64decode("".join(given.split()), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidConfig(f"{setting} is neither a file that exists nor base64", hint=hint) from None


def secret_key(given: str, setting: str) -> TokenKey:
    """Return the key for tokens that are signed with a secret. Raises InvalidConfig."""
    secret = key_bytes(given, setting)
    algorithms = tuple(name for name, least in SECRET_BYTES_MIN.items() if len(secret) >= least)
    if not algorithms:
        raise InvalidConfig(
            f"{setting}: a secret of {len(secret)} bytes can be guessed; 32 is the least",
            hint="make one with: pulsar tokens create-secret-key",
        )
    if secret.lstrip().startswith((b"-----BEGIN", b"ssh-")):
        raise InvalidConfig(f"{setting}: this is a key pair's half, no secret", hint="set access.token_public_key")
    return TokenKey(secret, algorithms)


def public_key(given: str, algorithm: str, setting: str) -> TokenKey:
    """Return the key for tokens that are signed with a private key. Raises InvalidConfig."""
    encoded = key_bytes(given, setting)
    try:
        key = load_pem_public_key(encoded) if encoded.startswith(b"-----") else load_der_public_key(encoded)
    except (ValueError, UnsupportedAlgorithm):
        hint = "make one with: pulsar tokens create-key-pair; it is DER or PEM"
        raise InvalidConfig(f"{setting} holds no public key", hint=hint) from None
    if algorithm.startswith("ES"):
        fits = isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == CURVES[algorithm]
    else:
        fits = isinstance(key, rsa.RSAPublicKey) and key.key_size >= RSA_BITS_MIN
    if not fits:
        raise InvalidConfig(
            f"{setting}: this key cannot be used with {algorithm}",
            hint=f"set access.token_public_alg to what signs the tokens; RSA takes {RSA_BITS_MIN} bits or more",
        )
    return TokenKey(key, (algorithm,))


def bearer(token: str, keys: Sequence[TokenKey], rules: TokenRules, clock: Clock) -> Bearer:
    """Return the bearer of a token that one of the keys signed. Raises Unauthenticated, which never shows any of it.

    An error refers to the first key.
    """
    claims, number = _by_any(token, keys)
    now_s = clock.wall_ms() / 1000
    expires_s, begins_s = _date(claims, "exp"), _date(claims, "nbf")
    if expires_s is not None and now_s >= expires_s + rules.leeway_s:
        raise Unauthenticated("the token has expired", hint=HINT)
    if begins_s is not None and now_s + rules.leeway_s < begins_s:
        raise Unauthenticated("the token is not valid yet", hint="compare the clocks of both machines")
    if rules.audience and rules.audience not in _texts(claims.get(rules.audience_claim)):
        raise Unauthenticated(f"the token is not meant for {rules.audience}", hint=HINT)
    if rules.issuer and keys[number].key_id is not None and claims.get("iss") != rules.issuer:
        raise Unauthenticated(f"the token was not issued by {rules.issuer}", hint=HINT)
    names = _texts(claims.get(rules.claim))
    try:
        name = checked_identity(names[0] if names else "")
    except InvalidInput:
        raise Unauthenticated(f"the token's claim {rules.claim!r} names nobody", hint=HINT) from None
    ends_s = None if expires_s is None else expires_s + rules.leeway_s
    return Bearer(name, ends_s, number, _groups(claims, rules.groups_claim))


def _groups(claims: dict[str, Any], claim: str) -> tuple[str, ...]:
    """Return the groups of a caller that can be names in grants, GROUPS_MAX of them."""
    found: Any = claims.get(claim)
    if claim and found is None:
        found = claims
        for part in claim.split("."):
            found = found.get(part) if isinstance(found, dict) else None
    groups = []
    for one in _texts(found)[:GROUPS_MAX]:
        with suppress(InvalidInput):
            groups.append(checked_identity(one))
    return tuple(groups)


def key_id_of(token: str) -> str:
    """Return the id of the key that a token names, empty without one, or for what is no token."""
    try:
        found = jwt.get_unverified_header(token).get("kid") if len(token) <= TOKEN_CHARS_MAX else None
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def _by_any(token: str, keys: Sequence[TokenKey]) -> tuple[dict[str, Any], int]:
    """Return the claims of a token and the index of its key. Raises Unauthenticated, for the first key."""
    refused = Unauthenticated("there is no key for tokens", hint=HINT)
    provided = any(key.key_id is not None for key in keys)
    named = key_id_of(token) if provided else ""
    for number, key in reversed(list(enumerate(keys))):
        if key.key_id and named and key.key_id != named:
            refused = Unauthenticated("the token is signed with a key that its provider does not list", hint=HINT)
            continue
        try:
            return _claims(token, key), number
        except Unauthenticated as error:
            refused = error
    raise refused


def _claims(token: str, key: TokenKey) -> dict[str, Any]:
    if len(token) > TOKEN_CHARS_MAX:
        raise Unauthenticated(f"the token is longer than {TOKEN_CHARS_MAX} characters", hint=HINT)
    try:
        return jwt.decode(token, key.key, algorithms=list(key.algorithms), options=SIGNATURE_ONLY)
    except jwt.InvalidAlgorithmError:
        wanted = " or ".join(key.algorithms)
        raise Unauthenticated(f"the token is not signed with {wanted}", hint=HINT) from None
    except jwt.InvalidSignatureError:
        raise Unauthenticated("the token's signature is wrong", hint=HINT) from None
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise Unauthenticated("malformed token", hint=HINT) from None


def _date(claims: dict[str, Any], name: str) -> float | None:
    """Return a claim's seconds since 1970. Raises Unauthenticated for another type, which must not mean `never`."""
    value = claims.get(name)
    if name not in claims:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Unauthenticated(f"the token's {name} is no date", hint="it must be a number of seconds since 1970")
    return float(value)


def _texts(value: object) -> list[str]:
    found = value if isinstance(value, list) else [value]
    return [one for one in found if isinstance(one, str)]
