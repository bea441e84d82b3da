"""What `make release` makes of a commit: packages, bills of materials, checksums, a signature and provenance."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tarfile
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_public_key,
)

from offloaderd import __version__
from offloaderd.core import native
from tools import release
from tools.release import INSTALLATIONS, ROOT, digest, main
from tools.sbom import bill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMMIT = "0123456789012345678901234567890123456789"
PEM = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key that signs."""
    path = tmp_path_factory.mktemp("key") / "release.key"
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(*PEM))
    return path


@contextmanager
def pinned_tree() -> Iterator[dict[str, str]]:
    """Give what git says of the tree meanwhile, which a test may change; all other programs are run."""
    said = {"status": "", "rev-parse": COMMIT, "show": "1700000000"}
    real: Callable[..., str] = release.run

    def run(*command: str | Path, **environment: str) -> str:
        return said[str(command[1])] if command[0] == "git" else real(*command, **environment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "run", run)
        yield said


@pytest.fixture
def tree() -> Iterator[dict[str, str]]:
    """See pinned_tree."""
    with pinned_tree() as said:
        yield said


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Path:
    """The folder of a release, which tests only read."""
    place = tmp_path_factory.mktemp("released") / "out"
    with pinned_tree():
        assert made(place, key) == 0
    return place


WITHOUT = ["nar", "image"] if native.IN_USE else ["native", "nar", "image"]
"""What needs Maven, a container engine, or a compiler that this machine does not have."""


def made(place: Path, key: Path, *further: str) -> int:
    """Make a release of the rest."""
    without = [word for one in WITHOUT for word in ("--without", one)]
    return main(["--key", str(key), "--to", str(place), *without, *further])


def test_a_release_is_whole_signed_and_the_same_again(
    tmp_path: Path, key: Path, tree: dict[str, str], released: Path
) -> None:
    """Of one commit: wheel and sdist with licence and notice, bills, sums; openssl and sha256sum find it sound."""
    assert tree["status"] == ""
    first, second = released, tmp_path / "second"
    assert made(second, key) == 0
    names = {one.name for one in first.iterdir()}
    stem = f"offloaderd-{__version__}"
    compiled = {one.name for one in first.glob(f"offloaderd_native-{__version__}-cp311-abi3-*.whl")}
    assert len(compiled) == int(native.IN_USE)
    assert names == {
        f"{stem}-py3-none-any.whl", f"{stem}.tar.gz", f"{stem}.intoto.jsonl", "release.pub", "SHA256SUMS",
        "SHA256SUMS.sig", *(f"{stem}-{one}.cdx.json" for one in INSTALLATIONS), *compiled,
    }  # fmt: skip
    assert {digest(first / name) for name in names} == {digest(second / name) for name in names}
    with zipfile.ZipFile(first / f"{stem}-py3-none-any.whl") as wheel:
        inside = {name.rpartition("/")[2] for name in wheel.namelist()}
        assert {"LICENSE", "NOTICE", "entry_points.txt", "py.typed"} <= inside
    with tarfile.open(first / f"{stem}.tar.gz") as sdist:
        assert {f"{stem}/LICENSE", f"{stem}/NOTICE", f"{stem}/pyproject.toml"} <= set(sdist.getnames())
    sums = (first / "SHA256SUMS").read_text()
    listed = {line.split()[1]: line.split()[0] for line in sums.splitlines()}
    assert listed == {name: digest(first / name) for name in names if not name.startswith("SHA256SUMS")}


def test_the_signature_is_one_that_openssl_verifies(tmp_path: Path, released: Path) -> None:
    """By the command of SECURITY.md; of sums that were changed it is refused."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl")
    shutil.copytree(released, tmp_path / "out")
    verify = [
        openssl, "pkeyutl", "-verify", "-pubin", "-inkey", "release.pub", "-rawin", "-in", "SHA256SUMS", "-sigfile",
        "SHA256SUMS.sig",
    ]  # fmt: skip
    assert " ".join(verify[1:]) in " ".join((ROOT / "SECURITY.md").read_text().replace("\\\n", " ").split())
    assert subprocess.run(verify, cwd=tmp_path / "out", capture_output=True, check=False).returncode == 0
    with (tmp_path / "out" / "SHA256SUMS").open("a") as sums:
        sums.write("\n")
    assert subprocess.run(verify, cwd=tmp_path / "out", capture_output=True, check=False).returncode != 0


def test_the_provenance_names_commit_locks_files_and_what_was_left_out(released: Path) -> None:
    """It is signed as DSSE has it, over the exact bytes of the statement."""
    out = released
    envelope = json.loads((out / f"offloaderd-{__version__}.intoto.jsonl").read_text())
    body, (signature,) = base64.b64decode(envelope["payload"]), envelope["signatures"]
    kind = envelope["payloadType"].encode()
    public: Any = load_pem_public_key((out / "release.pub").read_bytes())
    signed = b"DSSEv1 " + str(len(kind)).encode() + b" " + kind + b" " + str(len(body)).encode() + b" " + body
    public.verify(base64.b64decode(signature["sig"]), signed)
    statement = json.loads(body)
    wheel = f"offloaderd-{__version__}-py3-none-any.whl"
    assert {"name": wheel, "digest": {"sha256": digest(out / wheel)}} in statement["subject"]
    built = statement["predicate"]["buildDefinition"]
    assert built["externalParameters"]["without"] == WITHOUT
    assert built["resolvedDependencies"][0]["digest"] == {"gitCommit": COMMIT}
    assert {one["uri"] for one in built["resolvedDependencies"][1:]} >= {"requirements/runtime.txt"}


@pytest.mark.parametrize("lock", INSTALLATIONS)
def test_a_bill_has_every_locked_package_with_its_licence(lock: str) -> None:
    """And what needs what: each package is there for this one, or for another."""
    path = ROOT / "requirements" / f"{lock}.txt"
    document: Any = bill("offloaderd", "1.2", path, "2026-01-01T00:00:00Z")
    pins = {line.split(" ")[0] for line in path.read_text().splitlines() if "==" in line and line[0] not in " #"}
    assert {f"{one['name']}=={one['version']}" for one in document["components"]} == pins
    assert all(one["licenses"] for one in document["components"])
    needed = {ref for one in document["dependencies"] for ref in one["dependsOn"]}
    assert len({one["ref"] for one in document["dependencies"]}) == len(pins) + 1
    builders = {"editables", "hatchling", "setuptools"}  # what installs the others, in the lock of the standalone
    assert {one["name"] for one in document["components"] if one["purl"] not in needed} <= builders


def test_what_is_missing_is_named_before_anything_is_written(
    tmp_path: Path, key: Path, tree: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A clean tree, a key of the right kind, a base by its digest, a new directory."""
    out = tmp_path / "out"
    assert main(["--key", str(tmp_path / "none"), "--to", str(out), "--without", "nar"]) == 1
    assert "openssl genpkey -algorithm ed25519" in capsys.readouterr().err
    other = tmp_path / "other.key"
    other.write_bytes(generate_private_key(SECP256R1()).private_bytes(*PEM))
    assert made(out, other) == 1
    assert "no Ed25519 key" in capsys.readouterr().err
    tree["status"] = " M README.md"
    assert made(out, key) == 1
    assert "the tree differs from its commit" in capsys.readouterr().err
    assert not out.exists()
    tree["status"] = ""
    for base in ([], ["--base", "python:3.11-slim-bookworm"]):
        assert main(["--key", str(key), "--to", str(out), "--without", "nar", *base]) == 1
        assert "--base NAME@sha256:DIGEST" in capsys.readouterr().err
    assert not out.exists()
    out.mkdir()
    assert made(out, key) == 1
    assert not list(out.iterdir())
