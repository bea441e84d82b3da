"""A key pair for encrypted messages, made and used by Java: no library for it has to be installed."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pulsar

from tests.real.pulsar_messages import ENCRYPTION_KEYS, ENCRYPTION_PARAM

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real.gateway import RunningGateway
    from tests.real.pulsar_messages import Metadata

KEY_NAME = "test-key"
_TAG_BITS = 128


@dataclass(frozen=True, slots=True)
class MessageKeys:
    """Files for pulsar-client's reader of keys, and the private key to decrypt with. Use `make_keys`."""

    public: Path
    private: Path
    _jvm: Any
    _key: Any

    def reader(self) -> pulsar.CryptoKeyReader:
        """Return what producers and consumers are given."""
        return pulsar.CryptoKeyReader(str(self.public), str(self.private))

    def decrypt(self, metadata: Metadata, content: bytes) -> bytes:
        """Return the content of an encrypted message: AES-GCM under a data key that is encrypted for our key."""
        cipher = self._jvm.javax.crypto.Cipher
        unwrap = cipher.getInstance("RSA/ECB/OAEPWithSHA1AndMGF1Padding")
        unwrap.init(cipher.DECRYPT_MODE, self._key)
        # The client adds it again with every chunk: the last one is that of this chunk.
        sealed = [key.blob(2) for key in metadata.parts(ENCRYPTION_KEYS) if key.blob(1) == KEY_NAME.encode()][-1]
        key = self._jvm.javax.crypto.spec.SecretKeySpec(unwrap.doFinal(sealed), "AES")
        nonce = self._jvm.javax.crypto.spec.GCMParameterSpec(_TAG_BITS, metadata.blob(ENCRYPTION_PARAM))
        opened = cipher.getInstance("AES/GCM/NoPadding")
        opened.init(cipher.DECRYPT_MODE, key, nonce)
        return bytes(opened.doFinal(content))


def make_keys(gateway: RunningGateway, directory: Path) -> MessageKeys:
    """Make an RSA key pair and write it as PEM files."""
    jvm = gateway.java.jvm
    generator = jvm.java.security.KeyPairGenerator.getInstance("RSA")
    generator.initialize(2048)
    pair = generator.generateKeyPair()
    public, private = directory / "public.pem", directory / "private.pem"
    specs, factory = "java.security.spec.", jvm.java.security.KeyFactory.getInstance("RSA")
    for file, what, key, spec in (
        (public, "PUBLIC KEY", pair.getPublic(), "X509EncodedKeySpec"),
        (private, "PRIVATE KEY", pair.getPrivate(), "PKCS8EncodedKeySpec"),
    ):
        # By way of a specification: the classes of the keys themselves are closed to reflection.
        encoded = factory.getKeySpec(key, jvm.java.lang.Class.forName(specs + spec)).getEncoded()
        file.write_text(_pem(what, bytes(encoded)))
    return MessageKeys(public, private, jvm, pair.getPrivate())


def _pem(what: str, der: bytes) -> str:
    text = base64.b64encode(der).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {what}-----", *lines, f"-----END {what}-----", ""])
