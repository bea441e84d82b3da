"""Enumerations beside texts in answers: the field `state_code` gets the value that the text `state` names.

Services write texts alone. Values and texts are compared by name: `not-owner` is TOPIC_STATE_NOT_OWNER, and `explicit
LAC` SOURCE_EDGE_EXPLICIT_LAC.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, EnumDescriptor
from google.protobuf.message import Message

CODE = "_code"
"""End of the name of an enumeration beside a text: `state_code` beside `state`."""


def is_code(field: Any) -> bool:  # noqa: ANN401 - a field descriptor, of which protobuf has two types
    """Whether a field is an enumeration beside a text, which the server sets from it."""
    beside = field.name.removesuffix(CODE)
    named = field.enum_type is not None and beside != field.name
    return named and beside in field.containing_type.fields_by_name


class _Plan(NamedTuple):
    """What a type of messages has: numbers by text for each text field, and the fields of messages that have codes."""

    numbers: Mapping[str, Mapping[str, int]]
    within: tuple[tuple[str, bool], ...]
    """Name of the field, and whether it is repeated."""


def coded(message: Message) -> Message:
    """Set every enumeration beside a text, in inner messages as well; returns the message."""
    plan = _plan(message.DESCRIPTOR)
    if plan is not None:
        _fill(message, plan)
    return message


def numbers(enum: EnumDescriptor) -> dict[str, int]:
    """Return the numbers of an enumeration by the names that `code_name` gives the texts that they stand for."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {one.name.removeprefix(prefix): one.number for one in enum.values if one.number}


def code_name(text: str) -> str:
    """Return the end of the name of the value that a text stands for."""
    return text.upper().replace("-", "_").replace(" ", "_")


def _fill(message: Any, plan: _Plan) -> None:  # noqa: ANN401 - a message of any type
    for name, values in plan.numbers.items():
        if number := values.get(code_name(getattr(message, name)), 0):
            setattr(message, name + CODE, number)
    for name, repeated in plan.within:
        if repeated:
            for one in getattr(message, name):
                coded(one)
        elif message.HasField(name):
            coded(getattr(message, name))


@cache
def _plan(descriptor: Descriptor) -> _Plan | None:
    """Return where a type of messages has codes, None for nowhere. No message of ours contains itself."""
    found = {
        field.name.removesuffix(CODE): numbers(field.enum_type)
        for field in descriptor.fields
        if field.enum_type is not None and is_code(field)
    }
    within = tuple(
        (field.name, field.is_repeated)
        for field in descriptor.fields
        if field.message_type is not None
        and not field.message_type.GetOptions().map_entry
        and _plan(field.message_type) is not None
    )
    return _Plan(found, within) if found or within else None
