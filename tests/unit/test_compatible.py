"""The comparison with the last release: each way to break it is found, and additions are none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from tools.compatible import RELEASE, breaks, present

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
FIELD = FieldDescriptorProto


def some() -> FileDescriptorSet:
    """A file with a message, a message within it, an enumeration and a service."""
    file = FileDescriptorProto(name="x.proto", package="x", syntax="proto3")
    message = file.message_type.add(name="Record")
    message.field.add(name="a", number=1, type=FIELD.TYPE_UINT32, label=FIELD.LABEL_OPTIONAL)
    message.field.add(name="b", number=2, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL, proto3_optional=True)
    message.reserved_range.add(start=10, end=12)
    message.nested_type.add(name="Inner").field.add(name="c", number=1, type=FIELD.TYPE_BYTES, label=1)
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="SOME", number=1)
    service = file.service.add(name="Service")
    service.method.add(name="Call", input_type=".x.Record", output_type=".x.Record")
    return FileDescriptorSet(file=[file])


def without_field(file: FileDescriptorProto) -> None:
    """Take a field away."""
    del file.message_type[0].field[0]


def without_inner(file: FileDescriptorProto) -> None:
    """Take a message within another away."""
    del file.message_type[0].nested_type[0]


def another_meaning(file: FileDescriptorProto) -> None:
    """Call a number otherwise."""
    file.message_type[0].field[0].name = "z"


def another_type(file: FileDescriptorProto) -> None:
    """Make a text of a number."""
    file.message_type[0].field[0].type = FIELD.TYPE_STRING


def repeated(file: FileDescriptorProto) -> None:
    """Make a list of a number."""
    file.message_type[0].field[0].label = FIELD.LABEL_REPEATED


def without_presence(file: FileDescriptorProto) -> None:
    """Have nobody tell an empty text from none."""
    file.message_type[0].field[1].proto3_optional = False


def required(file: FileDescriptorProto) -> None:
    """Ask for what is in no record that was stored."""
    file.message_type[0].field.add(name="d", number=3, type=FIELD.TYPE_UINT32, label=FIELD.LABEL_REQUIRED)


def reserved(file: FileDescriptorProto) -> None:
    """Use a number that once meant something."""
    file.message_type[0].field.add(name="d", number=11, type=FIELD.TYPE_UINT32, label=FIELD.LABEL_OPTIONAL)


def another_value(file: FileDescriptorProto) -> None:
    """Give a value's number to another one."""
    file.enum_type[0].value[1].name = "OTHER"


def without_enum(file: FileDescriptorProto) -> None:
    """Take an enumeration away."""
    del file.enum_type[0]


def without_method(file: FileDescriptorProto) -> None:
    """Take a call away."""
    del file.service[0].method[0]


def without_service(file: FileDescriptorProto) -> None:
    """Take a service away."""
    del file.service[0]


def streaming(file: FileDescriptorProto) -> None:
    """Answer with a stream."""
    file.service[0].method[0].server_streaming = True


def another_answer(file: FileDescriptorProto) -> None:
    """Answer with another message."""
    file.service[0].method[0].output_type = ".x.Record.Inner"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_field, "x.Record.a: number 1 is gone and not reserved"),
        (without_inner, "x.Record.Inner: the message is gone"),
        (another_meaning, "x.Record.a: number 1 means z now"),
        (another_type, "x.Record.a: has another type"),
        (repeated, "x.Record.a: is repeated, required or optional in another way"),
        (without_presence, "x.Record.b: cannot be told from its default any more"),
        (required, "x.Record.d: is new and required: what is stored has none"),
        (reserved, "x.Record.d: takes number 11, which was reserved"),
        (another_value, "x.Kind.SOME: number 1 means OTHER now"),
        (without_enum, "x.Kind: the enumeration is gone"),
        (without_method, "x.Service/Call: the method is gone"),
        (without_service, "x.Service: the service is gone"),
        (streaming, "x.Service/Call: streams in another way"),
        (another_answer, "x.Service/Call: takes or returns another message"),
    ],
)
def test_what_would_be_misread_is_found(change: Callable[[FileDescriptorProto], None], words: str) -> None:
    """One line says where, and what."""
    new = some()
    change(new.file[0])
    assert breaks(some(), new) == [words]


def test_what_is_added_or_reserved_breaks_nothing() -> None:
    """New fields, values, messages, methods; a number that becomes wider; a field that is gone and reserved."""
    new = some()
    file = new.file[0]
    file.message_type[0].field.add(name="d", number=3, type=FIELD.TYPE_UINT32, label=FIELD.LABEL_OPTIONAL)
    file.message_type[0].field[0].type = FIELD.TYPE_UINT64
    del file.message_type[0].field[1]
    file.message_type[0].reserved_range.add(start=2, end=3)
    file.message_type.add(name="Another")
    file.enum_type[0].value.add(name="MORE", number=2)
    file.service[0].method.add(name="More", input_type=".x.Record", output_type=".x.Record")
    assert breaks(some(), new) == []


def test_this_tree_goes_with_the_last_release() -> None:
    """Of all that is stored and called; the release's own descriptors are all there."""
    release = FileDescriptorSet.FromString(RELEASE.read_bytes())
    assert len(release.file) > 20
    assert breaks(release, present()) == []
    again = subprocess.run([sys.executable, str(ROOT / "tools/compatible.py")], check=False, capture_output=True)
    assert again.returncode == 0, again.stderr
