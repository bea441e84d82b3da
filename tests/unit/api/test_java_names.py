"""Names for Java: its generator makes methods of fields, and two fields may get the same one."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.descriptor import FieldDescriptor

from tools.compatible import present

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

PAGE = Path(__file__).resolve().parents[3] / "docs" / "client.md"
LIST = ("List", "Count")
KINDS = {
    FieldDescriptor.TYPE_STRING: ("", "Bytes"),
    FieldDescriptor.TYPE_ENUM: ("", "Value"),
    FieldDescriptor.TYPE_MESSAGE: ("", "Builder", "OrBuilder"),
}


def getters(field: FieldDescriptorProto, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the methods without arguments that read a field."""
    name = "".join(part[:1].upper() + part[1:] for part in names.get(field.name, field.name).split("_"))
    ends = LIST if field.label == FieldDescriptor.LABEL_REPEATED else KINDS.get(field.type, ("",))
    yield from (f"get{name}{end}" for end in ends)


def clashes(names: Mapping[str, str]) -> set[str]:
    """Return `Message.getter` of all that two fields of the API share; `names` are fields with another name."""

    def within(message: DescriptorProto) -> Iterator[str]:
        found = Counter(one for field in message.field for one in getters(field, names))
        yield from (f"{message.name}.{one}" for one, many in found.items() if many > 1)
        for inner in message.nested_type:
            yield from within(inner)

    files = [file for file in present().file if file.package == "offloaderd.v1"]
    assert files
    return {one for file in files for message in file.message_type for one in within(message)}


def test_java_can_be_generated_as_the_page_says() -> None:
    """No two fields share a method in a copy with the other name that docs/client.md gives."""
    renamed = dict(re.findall(r"s/\\b(\w+)\\b/(\w+)/", PAGE.read_text(encoding="utf-8")))
    assert clashes({}) == {
        f"{message}.getRetentionBytes" for message in ("OffloadPolicies", "Selection", "EnableTopicRequest")
    }, "no further field of the API may need another name in Java"
    assert clashes(renamed) == set()
