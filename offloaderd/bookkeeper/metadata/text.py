"""The two old forms of ledger metadata, both text, read into the message of the third. WIRE.md, section 7.

Version 2 is that message in protobuf's text format. Version 1 is lines of its own: write quorum, ensemble size, length,
then an ensemble a line, and at the end one that says CLOSED, unless the ledger is open.
"""

from __future__ import annotations

import re
from typing import Final

from google.protobuf import text_format

from offloaderd.core.errors import CorruptData
from offloaderd.format.parsing import parse_message
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat

CLOSED: Final = "CLOSED"
IN_RECOVERY_ENTRY: Final = -102
"""In place of the last entry: somebody is recovering the ledger."""

_NUMBER = re.compile(r"-?[0-9]{1,19}")


def parse_version_2(text: bytes, *, key: str, at: int) -> LedgerMetadataFormat:
    """Read protobuf's text format; fields that are not known are passed over. Raises CorruptData."""
    message = LedgerMetadataFormat()
    try:
        text_format.Parse(text.decode("utf-8"), message, allow_unknown_field=True)
        data = message.SerializePartialToString()
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise CorruptData(key=key, offset=at, expected="ledger metadata as text", found=error) from None
    return parse_message(LedgerMetadataFormat, data, key=key, at=at)


def parse_version_1(text: bytes, *, key: str, at: int) -> LedgerMetadataFormat:
    """Read the lines of version 1, which knows no ack quorum (all have to answer), no digest type and no password.

    Raises CorruptData.
    """
    try:
        lines = text.decode("ascii").rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise CorruptData(key=key, offset=at + error.start, expected="ASCII text", found=error.reason) from None

    def number(word: str) -> int:
        if not _NUMBER.fullmatch(word) or not -(2**63) <= int(word) < 2**63:
            raise CorruptData(key=key, offset=at, expected="a number", found=repr(word[:40]))
        return int(word)

    if len(lines) < 4:
        raise CorruptData(key=key, offset=at, expected="two quorum sizes, a length and an ensemble", found=lines)
    message = LedgerMetadataFormat(length=number(lines[2]), state=LedgerMetadataFormat.OPEN)
    try:
        message.quorumSize, message.ensembleSize = number(lines[0]), number(lines[1])
    except ValueError as error:
        raise CorruptData(key=key, offset=at, expected="sizes of quorum and ensemble", found=error) from None
    for line in lines[3:]:
        first, *bookies = line.split("\t")
        if bookies == [CLOSED]:
            if number(first) == IN_RECOVERY_ENTRY:
                message.state = LedgerMetadataFormat.IN_RECOVERY
            else:
                message.state, message.lastEntryId = LedgerMetadataFormat.CLOSED, number(first)
            break
        message.segment.add(firstEntryId=number(first), ensembleMember=bookies)
    return message
