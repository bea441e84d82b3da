"""Compare the messages and services of this tree with those of the last release: `python tools/compatible.py`.

The descriptors of a release lie in tests/golden/release.binpb, a FileDescriptorSet; `--release` writes it anew, once,
when a release is made. What a daemon or a client of that release would misread, or miss, is an error: a
message, field, value, service or method that is gone (unless its number is reserved), a number with another type or
meaning, an answer that became a stream. What was added is not.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
RELEASE = ROOT / "tests" / "golden" / "release.binpb"
PACKAGES = ("offloaderd/protocol/v1", "offloaderd/format/pb/storage", "offloaderd/format/pb/pulsar")
SAME_ON_THE_WIRE = (
    {FieldDescriptorProto.TYPE_INT32, FieldDescriptorProto.TYPE_INT64},
    {FieldDescriptorProto.TYPE_UINT32, FieldDescriptorProto.TYPE_UINT64},
)
"""A number may become wider; nothing else may change."""


def present() -> FileDescriptorSet:
    """Return the descriptors of this tree's generated code, by file name."""
    found = FileDescriptorSet()
    for package in PACKAGES:
        for path in sorted((ROOT / package).glob("*_pb2.py")):
            module = importlib.import_module(".".join([*package.split("/"), path.stem]))
            module.DESCRIPTOR.CopyToProto(found.file.add())
    return found


def breaks(old: FileDescriptorSet, new: FileDescriptorSet) -> list[str]:
    """Return what a program of the old release would misread or miss, one line each."""
    messages, enums, services = _messages(new), _enums(new), _services(new)
    found: list[str] = []
    for name, message in _messages(old).items():
        if name in messages:
            found += _message_breaks(name, message, messages[name])
        else:
            found.append(f"{name}: the message is gone")
    for name, enum in _enums(old).items():
        if name in enums:
            found += _enum_breaks(name, enum, enums[name])
        else:
            found.append(f"{name}: the enumeration is gone")
    for name, service in _services(old).items():
        if name in services:
            found += _service_breaks(name, service, services[name])
        else:
            found.append(f"{name}: the service is gone")
    return found


def _message_breaks(name: str, old: DescriptorProto, new: DescriptorProto) -> Iterator[str]:
    fields = {one.number: one for one in new.field}
    for field in old.field:
        now = fields.get(field.number)
        if now is None:
            if not any(one.start <= field.number < one.end for one in new.reserved_range):
                yield f"{name}.{field.name}: number {field.number} is gone and not reserved"
        elif now.name != field.name:
            yield f"{name}.{field.name}: number {field.number} means {now.name} now"
        elif not _same_kind(field, now):
            yield f"{name}.{field.name}: has another type"
        elif now.label != field.label:
            yield f"{name}.{field.name}: is repeated, required or optional in another way"
        elif _presence(field) and not _presence(now):
            yield f"{name}.{field.name}: cannot be told from its default any more"
    known = {one.number for one in old.field}
    for field in new.field:
        if field.number in known:
            continue
        if field.label == FieldDescriptorProto.LABEL_REQUIRED:
            yield f"{name}.{field.name}: is new and required: what is stored has none"
        if any(one.start <= field.number < one.end for one in old.reserved_range):
            yield f"{name}.{field.name}: takes number {field.number}, which was reserved"


def _same_kind(old: FieldDescriptorProto, new: FieldDescriptorProto) -> bool:
    if old.type != new.type:
        return any({old.type, new.type} <= kinds for kinds in SAME_ON_THE_WIRE)
    return old.type_name == new.type_name


def _presence(field: FieldDescriptorProto) -> bool:
    return field.proto3_optional or field.HasField("oneof_index")


def _enum_breaks(name: str, old: EnumDescriptorProto, new: EnumDescriptorProto) -> Iterator[str]:
    values = {one.number: one.name for one in new.value}
    for value in old.value:
        if values.get(value.number) != value.name:
            yield f"{name}.{value.name}: number {value.number} means {values.get(value.number, 'nothing')} now"


def _service_breaks(name: str, old: ServiceDescriptorProto, new: ServiceDescriptorProto) -> Iterator[str]:
    methods = {one.name: one for one in new.method}
    for method in old.method:
        now = methods.get(method.name)
        if now is None:
            yield f"{name}/{method.name}: the method is gone"
        elif (now.input_type, now.output_type) != (method.input_type, method.output_type):
            yield f"{name}/{method.name}: takes or returns another message"
        elif (now.client_streaming, now.server_streaming) != (method.client_streaming, method.server_streaming):
            yield f"{name}/{method.name}: streams in another way"


def _messages(files: FileDescriptorSet) -> dict[str, DescriptorProto]:
    def within(prefix: str, messages: Sequence[DescriptorProto]) -> Iterator[tuple[str, DescriptorProto]]:
        for message in messages:
            yield f"{prefix}.{message.name}", message
            yield from within(f"{prefix}.{message.name}", message.nested_type)

    return {name: one for file in files.file for name, one in within(file.package, file.message_type)}


def _enums(files: FileDescriptorSet) -> dict[str, EnumDescriptorProto]:
    top = {f"{file.package}.{enum.name}": enum for file in files.file for enum in file.enum_type}
    inner = {f"{name}.{enum.name}": enum for name, one in _messages(files).items() for enum in one.enum_type}
    return top | inner


def _services(files: FileDescriptorSet) -> dict[str, ServiceDescriptorProto]:
    return {f"{file.package}.{service.name}": service for file in files.file for service in file.service}


def main() -> None:
    """Compare with the released version, or record a new one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", action="store_true", help="write this tree's descriptors as those of the release")
    if parser.parse_args().release:
        RELEASE.write_bytes(present().SerializeToString(deterministic=True))
        return
    found = breaks(FileDescriptorSet.FromString(RELEASE.read_bytes()), present())
    if found:
        sys.exit("the last release would misread or miss:\n  " + "\n  ".join(found))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
