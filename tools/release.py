"""`make release`: everything that is published, with bills of materials, checksums, a signature and provenance.

It works without a network, and uploads nothing. What is left out has to be named (--without), and is named in the
provenance.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from offloaderd import __version__
from tools.sbom import bill

ROOT = Path(__file__).resolve().parent.parent
NAME = "offloaderd"
PARTS = ("native", "nar", "image")
"""What needs a program that is not in the environment: a C compiler, Maven, a container engine."""
INSTALLATIONS = ("client", "runtime", "spark", "standalone")
"""Locks that users install, each with a bill of materials."""
PAYLOAD_TYPE = "application/vnd.in-toto+json"
DRIVER = ROOT / "deploy" / "pulsar-offloader"
_PINNED = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")


class NotReleased(Exception):
    """Something is missing: the text says what to do."""


def run(*command: str | Path, **environment: str) -> str:
    """Run a program in this tree and return what it wrote. Raises NotReleased."""
    words = list(map(str, command))
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotReleased(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr or done.stdout}")
    return done.stdout.strip()


def key_of(path: Path) -> Ed25519PrivateKey:
    """Read the key that signs. Raises NotReleased."""
    make = "make one outside of this tree: openssl genpkey -algorithm ed25519 -out FILE"
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise NotReleased(f"no key in {path}: {error}; {make}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise NotReleased(f"{path} is no Ed25519 key; {make}")
    return key


def packages(place: Path, made_s: int) -> None:
    """Build wheel and sdist; the same commit gives the same bytes."""
    run(sys.executable, "-m", "hatchling", "build", "--directory", place, SOURCE_DATE_EPOCH=str(made_s))


def native(place: Path, made_s: int) -> None:
    """Build the wheel of the compiled loops, for the processor and the C library of this machine.

    It is built from a copy: a build leaves files beside its sources, which another one would take.
    """
    options = ("--quiet", "--no-input", "--no-deps", "--no-build-isolation", "--wheel-dir", place)
    with tempfile.TemporaryDirectory() as made_in:
        sources = Path(made_in) / "native"
        shutil.copytree(ROOT / "native", sources, ignore=shutil.ignore_patterns("build", "*.egg-info"))
        run(sys.executable, "-m", "pip", "wheel", *options, sources, SOURCE_DATE_EPOCH=str(made_s))


def nar(place: Path) -> None:
    """Build what brokers load by Maven without a network, and take the bill of materials. Raises NotReleased."""
    if shutil.which("mvn") is None:
        raise NotReleased("the driver needs Maven: install it, or give --without nar")
    for module in ("driver", "nar", "compaction"):
        shutil.rmtree(DRIVER / module / "target", ignore_errors=True)
    run("mvn", "-o", "-q", "-B", "-ntp", "-f", DRIVER, "-P", "sbom", "-DskipTests", "package")
    (built,) = (DRIVER / "nar" / "target").glob("*.nar")
    (compaction,) = (DRIVER / "compaction" / "target").glob("*.jar")
    for one in (built, compaction):
        shutil.copyfile(one, place / one.name)
    shutil.copyfile(DRIVER / "driver" / "target" / "bom.json", place / f"{built.stem}.cdx.json")


def image(place: Path, base: str | None, made_s: int) -> None:
    """Build the image over a base that a digest names, and save it. Raises NotReleased."""
    tag = f"{NAME}:{__version__}"
    run("docker", "build", "--tag", tag, "--build-arg", f"PYTHON={base}", ".", SOURCE_DATE_EPOCH=str(made_s))
    run("docker", "save", "--output", place / f"{NAME}-{__version__}-image.tar", tag)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def statement(files: list[Path], commit: str, base: str | None, without: list[str]) -> dict[str, object]:
    """Return the provenance of files: in-toto, with the predicate of SLSA 1.0."""
    locks = sorted((ROOT / "requirements").glob("*.txt"))
    materials = [{"uri": f"git+{NAME}", "digest": {"gitCommit": commit}}]
    materials += [{"uri": f"requirements/{one.name}", "digest": {"sha256": digest(one)}} for one in locks]
    parameters = {"version": __version__, "base": base, "without": without}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": one.name, "digest": {"sha256": digest(one)}} for one in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"urn:{NAME}:make-release:1",
                "externalParameters": parameters,
                "resolvedDependencies": materials,
            },
            "runDetails": {"builder": {"id": f"urn:{NAME}:make-release"}},
        },
    }


def envelope(document: dict[str, object], key: Ed25519PrivateKey) -> dict[str, object]:
    """Return a document signed as DSSE has it."""
    body = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    signed = b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(body), body)
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    signature = {"keyid": hashlib.sha256(public).hexdigest(), "sig": base64.b64encode(key.sign(signed)).decode()}
    return {"payloadType": PAYLOAD_TYPE, "payload": base64.b64encode(body).decode(), "signatures": [signature]}


def release(place: Path, key: Ed25519PrivateKey, base: str | None, without: list[str]) -> None:
    """Write everything that is published into an empty directory. Raises NotReleased."""
    if changed := run("git", "status", "--porcelain"):
        raise NotReleased(f"the tree differs from its commit: commit or remove\n{changed}")
    commit, made_s = run("git", "rev-parse", "HEAD"), int(run("git", "show", "-s", "--format=%ct"))
    made = datetime.fromtimestamp(made_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if "image" not in without and (base is None or not _PINNED.fullmatch(base)):
        raise NotReleased("the image needs --base NAME@sha256:DIGEST, as a name alone moves; or give --without image")
    place.mkdir(parents=True, exist_ok=False)
    packages(place, made_s)
    for lock in INSTALLATIONS:
        document = bill(NAME, __version__, ROOT / "requirements" / f"{lock}.txt", made)
        (place / f"{NAME}-{__version__}-{lock}.cdx.json").write_text(json.dumps(document, indent=1) + "\n")
    if "native" not in without:
        native(place, made_s)
    if "nar" not in without:
        nar(place)
    if "image" not in without:
        image(place, base, made_s)
    files = sorted(one for one in place.iterdir() if one.is_file())
    provenance = envelope(statement(files, commit, base, without), key)
    (place / f"{NAME}-{__version__}.intoto.jsonl").write_text(json.dumps(provenance) + "\n")
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (place / "release.pub").write_bytes(public)
    sums = "".join(f"{digest(one)}  {one.name}\n" for one in sorted(place.iterdir()) if one.is_file())
    (place / "SHA256SUMS").write_text(sums)
    (place / "SHA256SUMS.sig").write_bytes(key.sign(sums.encode()))


def main(arguments: list[str] | None = None) -> int:
    """Make a release, and list it: 0 done, 1 something is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--key", type=Path, required=True, help="the Ed25519 key that signs (PEM), outside of the tree")
    parser.add_argument("--base", help="the base image by its digest: python@sha256:...")
    parser.add_argument("--without", action="append", choices=PARTS, default=[], help="leave a part out")
    parser.add_argument("--to", type=Path, default=ROOT / "dist" / f"{NAME}-{__version__}", help="a new directory")
    given = parser.parse_args(arguments)
    try:
        release(given.to, key_of(given.key), given.base, given.without)
    except (NotReleased, OSError) as error:
        sys.stderr.write(f"no release: {error}\n")
        return 1
    sys.stdout.write((given.to / "SHA256SUMS").read_text())
    left_out = f"; without {', '.join(given.without)}" if given.without else ""
    sys.stdout.write(f"in {given.to}, nothing was uploaded{left_out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
