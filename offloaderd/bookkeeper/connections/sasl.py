"""SASL DIGEST-MD5 (RFC 2831) from the client's side, as far as bookies use it: authentication, no encryption.

    exchange = DigestMd5(options, cnonce)
    token = exchange.respond(b"")             # what the client begins with: nothing
    token = exchange.respond(challenge)       # the proof that it knows the password
    exchange.respond(last)                    # checks the proof that the bookie knows it too
    exchange.complete

Pure: bytes in, bytes out, one exchange for each connection. The mechanism is an old one, and MD5 a weak hash: across
networks that others use, TLS belongs round it.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Final

from offloaderd.bookkeeper.wire.status import BadAnswer
from offloaderd.core.errors import Denied, InvalidConfig

MECHANISM: Final = "DIGEST-MD5"
CHALLENGE_BYTES_MAX: Final = 2048
"""The RFC's own limit."""

_DIRECTIVE = re.compile(r'[\s,]*([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+))\s*(?=,|$)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_FIRST_USE: Final = "00000001"
_QUALITY: Final = "auth"


class DigestMd5:
    """One exchange. `cnonce` must be new for each, and random.

    `uri` is part of the digest: BookKeeper's own name on both sides, for any bookie.
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
        """Return the answer to a challenge: b"" to the first, which is empty, and to the last.

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
            raise Denied(
                f"the bookie wants to authenticate by something else than {MECHANISM}",
                hint=f"of the plugin `sasl` only {MECHANISM} is supported, not GSSAPI (Kerberos)",
            )
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
