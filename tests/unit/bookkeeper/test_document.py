"""WIRE.md against the code: every layout, message, digest, code and path that it describes, and nothing left out."""

from __future__ import annotations

import importlib
import re
import struct
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import offloaderd.bookkeeper
from offloaderd.bookkeeper.metadata import Layout
from offloaderd.bookkeeper.wire import v2
from offloaderd.bookkeeper.wire.entry import DigestType
from offloaderd.bookkeeper.wire.protocol import V2_CODES, V3_CODES, Status, failure, reaction_to
from offloaderd.format.pb.bookkeeper import protocol_pb2, registration_pb2
from tests.unit.messages import fields_of

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

NAME = "offloaderd.bookkeeper"
PACKAGE = Path(offloaderd.bookkeeper.__file__).parent
TEXT = (PACKAGE / "WIRE.md").read_text(encoding="utf-8")
CODES = {"B": "u8", "H": "u16", "I": "u32", "i": "i32", "q": "i64", "Q": "u64"}

Table = list[dict[str, str]]


def rows_of(lines: str) -> Table:
    """Return a table's rows by column."""
    head, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines.splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


def tables(kind: str) -> dict[str, Table]:
    """Return the tables of one kind ("Struct" or "Message") by the name above each."""
    found = re.findall(rf"^{kind}: `([\w.]+)`\n\n((?:\|.*\n)*)", TEXT, re.MULTILINE)
    assert len({name for name, _ in found}) == len(found)
    return {name: rows_of(lines) if lines else [] for name, lines in found}


def table(first_column: str) -> Table:
    """Return the one table that begins with this column."""
    (lines,) = re.findall(rf"^(\| {first_column} \|.*\n(?:\|.*\n)+)", TEXT, re.MULTILINE)
    return rows_of(lines)


STRUCTS, MESSAGES = tables("Struct"), tables("Message")


def test_every_struct_has_its_table() -> None:
    """No module packs or unpacks a layout that the document does not describe, and the other way round."""
    defined = {
        f"{NAME}.{module.parent.name}.{module.stem}.{name}"
        for module in PACKAGE.glob("*/*.py")
        for name in re.findall(r"^(\w+) = struct\.Struct\(", module.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert defined == set(STRUCTS)


@pytest.mark.parametrize("name", STRUCTS)
def test_table_is_the_struct(name: str) -> None:
    """Offsets, sizes and types of a table are those of the Struct, field by field."""
    module, _, attribute = name.rpartition(".")
    layout = getattr(importlib.import_module(module), attribute)
    assert layout.format.startswith(">")
    codes = re.findall(r"[a-zA-Z]", layout.format)
    sizes = [struct.calcsize(f">{code}") for code in codes]
    rows = STRUCTS[name]
    assert [int(row["size"]) for row in rows] == sizes
    assert [int(row["offset"]) for row in rows] == list(accumulate(sizes, initial=0))[:-1]
    assert [row["type"] for row in rows] == [CODES[code] for code in codes]
    assert all(row["meaning"] for row in rows)


@pytest.mark.parametrize(
    ("name", "request_bytes"),
    [("READ_REQUEST", v2.encode_read(1, 2)), ("BATCH_REQUEST", v2.encode_batch_read(1, 2, 3, count_max=4))],
)
def test_fixed_fields_have_the_values_that_are_sent(name: str, request_bytes: bytes) -> None:
    """Version, operation and flags of the tables are what the encoders send."""
    for row in STRUCTS[f"{NAME}.wire.v2.{name}"][:3]:
        at, size = 4 + int(row["offset"]), int(row["size"])
        assert int.from_bytes(request_bytes[at : at + size], "big") == int(row["meaning"])


@pytest.mark.parametrize("name", MESSAGES)
def test_table_is_the_message(name: str) -> None:
    """Numbers, types and names of a table are those of the protobuf message."""
    rows = [(int(row["number"]), row["type"], row["field"]) for row in MESSAGES[name]]
    assert rows == fields_of(name)


def messages(descriptor: Descriptor) -> set[str]:
    """Return the names of a message and of those inside it."""
    return {descriptor.full_name}.union(*map(messages, descriptor.nested_types))


def test_every_message_has_its_table() -> None:
    """Both proto files are described whole."""
    for file in (protocol_pb2, registration_pb2):
        for descriptor in file.DESCRIPTOR.message_types_by_name.values():
            assert messages(descriptor) <= set(MESSAGES)


def test_digests_are_the_documents() -> None:
    """Names, numbers and sizes."""
    rows = [(row["type"], int(row["number"]), int(row["size"])) for row in table("type")]
    assert rows == [(kind.name, kind.value, kind.size_bytes) for kind in DigestType]


def test_codes_are_the_documents() -> None:
    """Every code of both protocols, its status, error and reaction."""
    rows = table("code v2")
    assert {int(row["code v2"]): row["status"] for row in rows} == {code: at.name for code, at in V2_CODES.items()}
    assert {int(row["code v3"]): row["status"] for row in rows} == {code: at.name for code, at in V3_CODES.items()}
    for row in rows[1:]:
        error = failure(Status[row["status"]], 0, bookie="b", what="x")
        assert (type(error).__name__, reaction_to(error).name) == (row["what it becomes"], row["reaction"])


def test_layouts_are_the_documents() -> None:
    """Every layout, with its path of ledger 7."""
    rows = {row["layout"]: row["path of ledger 7"] for row in table("layout")}
    assert rows == {layout: f"`{layout.path('/ledgers', 7)}`" for layout in Layout}


def test_the_package_does_no_io_in_its_codecs() -> None:
    """The modules that know bytes open nothing, wait for nothing and ask no clock."""
    pure = ["wire/entry", "wire/protocol", "metadata", "wire/v2", "wire/v3"]
    banned = re.compile(r"^\s*(?:import|from) (?:asyncio|io|os|pathlib|random|socket|ssl|subprocess|threading|time)\b")
    for name in pure:
        for line in (PACKAGE / f"{name}.py").read_text(encoding="utf-8").splitlines():
            assert not banned.match(line), f"{name}: {line}"
