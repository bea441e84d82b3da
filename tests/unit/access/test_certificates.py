"""Certificate files: what cannot be used is refused as a whole, in words; what changes is taken up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from offloaderd.access.certificates import TlsFiles, Watched, load_certificates
from offloaderd.core.errors import InvalidConfig
from tests.authority import LONG_AGO, Authority

if TYPE_CHECKING:
    from pathlib import Path


def test_a_pair_is_loaded_with_its_end(tmp_path: Path) -> None:
    """An ended one too: the metric says so, and clients will."""
    ca = Authority(tmp_path)
    assert load_certificates(ca.server(ca.file)).client_ca == ca.file.read_bytes()
    pair = ca.issue("daemon", "localhost", ended=True)
    found = load_certificates(TlsFiles(cert=pair.cert, key=pair.key))
    assert found.expires_s == LONG_AGO.timestamp()
    assert pair.key.read_text()[40:60] not in repr(found)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("no cert", "tls.cert_file: cannot read .*: No such file"),
        ("empty cert", "tls.cert_file: .* holds no certificate"),
        ("half a cert", "tls.cert_file: .* holds no certificate"),
        ("empty key", "tls.key_file: .* holds no private key"),
        ("foreign key", "is not the key of the certificate"),
        ("locked key", "protected by a passphrase"),
        ("empty ca", "tls.client_ca_file: .* holds no certificate"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, broken: str, message: str) -> None:
    """The setting, the file, and what is wrong with it; never what is in it."""
    ca = Authority(tmp_path)
    files = ca.server(ca.file)
    assert files.client_ca is not None
    match broken:
        case "no cert":
            files.cert.unlink()
        case "empty cert":
            files.cert.write_bytes(b"")
        case "half a cert":
            files.cert.write_bytes(files.cert.read_bytes()[:200])
        case "empty key":
            files.key.write_bytes(b"")
        case "foreign key":
            files.key.write_bytes(ca.issue("other").key.read_bytes())
        case "locked key":
            key = load_pem_private_key(files.key.read_bytes(), None)
            locked = BestAvailableEncryption(b"x")
            files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
        case "empty ca":
            files.client_ca.write_bytes(b"")
    with pytest.raises(InvalidConfig, match=message):
        load_certificates(files)


def test_what_changes_is_read_again_and_what_is_broken_is_not_used(tmp_path: Path) -> None:
    """The last good value stays, listeners hear of the next good one, and a repair in place is noticed."""
    file = tmp_path / "value"
    file.write_text("1")

    def load() -> int:
        try:
            return int(file.read_text())
        except (OSError, ValueError):
            raise InvalidConfig("broken") from None

    watched, last_answer = Watched([file], load), list[int]()
    watched.listen(last_answer.append)
    assert not watched.refresh()
    file.write_text("10")
    assert watched.refresh()
    for bad in ("x", ""):
        file.write_text(bad)
        assert not watched.refresh()
        assert watched.failing
    file.unlink()
    assert not watched.refresh()
    assert watched.value == 10
    file.write_text("100")
    assert watched.refresh()
    assert (watched.value, last_answer, watched.failing) == (100, [10, 100], False)
