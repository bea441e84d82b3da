"""FORMAT.md against the code: every header and every message it describes, and nothing left out."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import struct
import sys
from itertools import accumulate
from pathlib import Path

import pytest

import offloaderd.format
from offloaderd.format import manifest_bytes, v1, v2
from offloaderd.format.pb.storage import head_pb2, manifest_pb2
from offloaderd.format.pulsar import broker_entry
from tests.unit.format import builders
from tests.unit.messages import fields_of

PACKAGE = Path(offloaderd.format.__file__).parent
CODES = {"I": "u32", "i": "i32", "q": "i64", "Q": "u64", "s": "bytes"}

Table = list[dict[str, str]]


def tables(kind: str) -> dict[str, Table]:
    """Return the tables of one kind ("Struct" or "Message") by the name above each, as rows by column."""
    found: dict[str, Table] = {}
    text = (PACKAGE / "FORMAT.md").read_text(encoding="utf-8")
    for match in re.finditer(rf"^{kind}: `([\w.]+)`\n\n((?:\|.*\n)+)", text, re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in match[2].splitlines())
        assert match[1] not in found
        found[match[1]] = [dict(zip(head, row, strict=True)) for row in rows]
    return found


STRUCTS, MESSAGES = tables("Struct"), tables("Message")


def modules() -> list[str]:
    """Return the names of the package's own modules."""
    found = pkgutil.walk_packages([str(PACKAGE)], "offloaderd.format.")
    return ["offloaderd.core.entries", *(one.name for one in found if not one.ispkg and ".pb." not in one.name)]


def test_every_struct_has_its_table() -> None:
    """No module packs or unpacks a header that the document does not describe, and the other way round."""
    defined = {
        f"{module}.{name}"
        for module in modules()
        for name, value in vars(importlib.import_module(module)).items()
        if isinstance(value, struct.Struct)
        and re.search(rf"^{name} = struct", inspect.getsource(sys.modules[module]), re.MULTILINE)
    }
    assert defined == set(STRUCTS)


@pytest.mark.parametrize("name", STRUCTS)
def test_table_is_the_struct(name: str) -> None:
    """Offsets, sizes and types of a table are those of the Struct, field by field."""
    module, _, attribute = name.rpartition(".")
    layout = getattr(importlib.import_module(module), attribute)
    assert layout.format.startswith(">")
    codes = re.findall(r"(\d*)([a-zA-Z])", layout.format)
    sizes = [struct.calcsize(f">{count}{code}") for count, code in codes]
    rows = STRUCTS[name]
    assert [int(row["size"]) for row in rows] == sizes
    assert [int(row["offset"]) for row in rows] == list(accumulate(sizes, initial=0))[:-1]
    assert [row["type"] for row in rows] == [CODES[code] for _, code in codes]
    assert all(row["meaning"] for row in rows)


SAMPLES = {
    "offloaderd.format.v1.BLOCK_HEADER": v1.encode_header(v1.BlockHeader(180, 3)),
    "offloaderd.format.v1.INDEX_HEADER": builders.build_ledger([b"abc"], block_bytes_max=180)[2],
    "offloaderd.format.v2.BLOCK_HEADER": v2.encode_header(v2.BlockHeader(192, 0, 7)),
    "offloaderd.format.v2.INDEX_HEADER": builders.small_segment().index,
    "offloaderd.format.manifest_bytes.HEADER": manifest_bytes.encode(builders.small_segment().manifest),
    "offloaderd.format.pulsar.broker_entry.HEAD": broker_entry.encode_head(index=1),
}


def test_every_magic_word_has_a_sample() -> None:
    """The next test covers every header that has a magic word."""
    assert {name for name, rows in STRUCTS.items() if rows[0]["field"] == "magic"} == set(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_fixed_fields_have_the_values_that_are_written(name: str) -> None:
    """Magic words, versions, header lengths and reserved zeros of the tables are what the encoders write."""
    for row in STRUCTS[name]:
        offset, size = int(row["offset"]), int(row["size"])
        written = SAMPLES[name][offset : offset + size]
        if row["field"] == "magic":
            assert f"`{written.hex(' ').upper()}`" == row["meaning"]
        elif row["field"] == "reserved":
            assert row["meaning"] == "zeros"
            assert written == bytes(size)
        elif row["field"] in {"header_len", "data_header_len", "version"}:
            assert int.from_bytes(written, "big") == int(row["meaning"].split(",")[0])


@pytest.mark.parametrize("name", MESSAGES)
def test_table_is_the_message(name: str) -> None:
    """Numbers, types and names of a table are those of the protobuf message."""
    rows = [(int(row["number"]), row["type"], row["field"]) for row in MESSAGES[name]]
    assert rows == fields_of(name)


def test_every_message_of_ours_has_its_table() -> None:
    """The whole manifest is described, and so are heads and markers."""
    files = (manifest_pb2.DESCRIPTOR, head_pb2.DESCRIPTOR)
    assert {message.full_name for file in files for message in file.message_types_by_name.values()} <= set(MESSAGES)
