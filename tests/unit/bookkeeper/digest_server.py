"""The server's side of DIGEST-MD5 for tests, written apart from the client's."""

from __future__ import annotations

import re
from hashlib import md5
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_PAIR = re.compile(r'([a-z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^",]+))(?:,|$)', re.DOTALL)


def _hex(*parts: bytes) -> bytes:
    return md5(b":".join(parts), usedforsecurity=False).hexdigest().encode()


def _bytes(text: str) -> bytes:
    return text.encode("latin-1") if all(ord(character) < 256 for character in text) else text.encode()


class DigestServer:
    """Knows the passwords of its users."""

    def __init__(self, users: Mapping[str, str], *, realm: str = "bookkeeper", nonce: str = "n0nce") -> None:
        self._users = users
        self._realm = realm
        self._nonce = nonce

    @property
    def challenge(self) -> bytes:
        """What it says first, in the words of Java's server."""
        realm = self._realm.replace("\\", "\\\\").replace('"', '\\"')
        return f'realm="{realm}",nonce="{self._nonce}",qop="auth",charset=utf-8,algorithm=md5-sess'.encode()

    def check(self, response: bytes) -> bytes:
        """Return its last word to who knows the password. Raises PermissionError for others."""
        said = {
            name: re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL) if quoted or not plain else plain
            for name, quoted, plain in _PAIR.findall(response.decode())
        }
        password = self._users.get(said["username"])
        if password is None or said["realm"] != self._realm or said["nonce"] != self._nonce:
            raise PermissionError("unknown user, realm or nonce")
        user = b":".join(_bytes(part) for part in (said["username"], self._realm, password))
        first = md5(user, usedforsecurity=False).digest()
        secret = _hex(first, self._nonce.encode(), said["cnonce"].encode())
        rest = (self._nonce.encode(), said["nc"].encode(), said["cnonce"].encode(), said["qop"].encode())
        uri = said["digest-uri"].encode()
        if said["response"].encode() != _hex(secret, *rest, _hex(b"AUTHENTICATE", uri)):
            raise PermissionError("wrong password")
        return b"rspauth=" + _hex(secret, *rest, _hex(b"", uri))
