"""Compile protos/ into the two generated packages; with --check, fail if the committed files differ.

The API (protos/offloaderd/v1) becomes offloaderd.protocol.v1; everything that is stored (protos/pulsar,
protos/bookkeeper, protos/offloaderd/storage) becomes offloaderd.format.pb. Import lines are rewritten to those homes.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
HOMES = {
    "offloaderd/v1": "offloaderd.protocol.v1",
    "offloaderd/storage": "offloaderd.format.pb.storage",
    "pulsar": "offloaderd.format.pb.pulsar",
    "bookkeeper": "offloaderd.format.pb.bookkeeper",
}


def compile_into(folder: Path) -> dict[Path, str]:
    """Run protoc and return the content of every generated file by its path in the project."""
    sources = sorted(str(path) for path in PROTOS.rglob("*.proto"))
    include = Path(protoc.__file__).parent / "_proto"
    services = [source for source in sources if "/offloaderd/v1/" in source]
    flags = [f"-I{PROTOS}", f"-I{include}", f"--python_out={folder}", f"--mypy_out=quiet:{folder}"]
    if protoc.main(["protoc", *flags, *sources]) != 0:
        sys.exit("protoc failed")
    flags = [f"-I{PROTOS}", f"-I{include}", f"--grpc_python_out={folder}", f"--mypy_grpc_out=quiet:{folder}"]
    if protoc.main(["protoc", *flags, *services]) != 0:
        sys.exit("protoc failed for the services")

    generated: dict[Path, str] = {}
    for place, package in HOMES.items():
        home = Path(package.replace(".", "/"))
        generated[home / "__init__.py"] = f'"""Generated from protos/{place} by `make protos`."""\n'
        for path in sorted((folder / place).iterdir()):
            if "_pb2_grpc.py" in path.name and "Stub" not in path.read_text():
                continue
            generated[home / path.name] = rehomed(path.read_text())
    generated[Path("offloaderd/format/pb/__init__.py")] = '"""Generated messages of everything that is stored."""\n'
    return generated


def rehomed(text: str) -> str:
    """Point the imports of generated code at the packages where it is committed."""
    for place, package in HOMES.items():
        dotted = place.replace("/", ".")
        text = re.sub(rf"^from {re.escape(dotted)} import", f"from {package} import", text, flags=re.MULTILINE)
        text = re.sub(rf"\b{re.escape(dotted)}\.(\w+_pb2)\b", rf"{package}.\1", text)
    return text


def main() -> None:
    """Write the generated files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is missing or differs")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        generated = compile_into(Path(folder))
    homes = {ROOT / path.parent for path in generated}
    committed = {path.relative_to(ROOT) for home in homes for path in home.glob("*.py*") if path.is_file()}
    stale = sorted(committed - generated.keys())
    changed = sorted(
        path for path, text in generated.items() if not (ROOT / path).exists() or (ROOT / path).read_text() != text
    )
    if check:
        for path in [*changed, *stale]:
            sys.stderr.write(f"{path} is not what protos/ gives: run `make protos`\n")
        sys.exit(1 if changed or stale else 0)
    for path in stale:
        (ROOT / path).unlink()
    for path in changed:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(generated[path])


if __name__ == "__main__":
    main()
