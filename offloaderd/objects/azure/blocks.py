"""Names by which an upload survives on Azure, which has no uploads but uncommitted blocks of a blob, without checksums.

A block's id has 64 characters, as many as the service takes:

| characters | meaning |
|---|---|
| 16 | upload id, in hexadecimal digits |
| 5 | part number, in decimal digits |
| 11 | time of sending in ms since 1970, in hexadecimal digits: the later of two with one number counts |
| 32 | MD5 of the part, in hexadecimal digits; the service has compared it with the bytes |

The upload itself is a small blob beside the object, `<key>.upload-<upload id>`, whose metadata are those of the object.
Its content is empty, or says in JSON how the object is stored (`storage_class`, `tags`). It says that the upload is
open; listings do not show it. Uncommitted blocks cannot be deleted: those of an upload that was given up end a week
after the last one, or when the blob is written otherwise.
"""

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from offloaderd.core.errors import CorruptData
from offloaderd.objects.port import PartInfo
from offloaderd.objects.stored_as import PLAIN, StoredAs

_UPLOAD_ID = re.compile(r"[0-9a-f]{16}")
_BLOCK_ID = re.compile(r"([0-9a-f]{16})([0-9]{5})([0-9a-f]{11})([0-9a-f]{32})")
_RECORD = re.compile(r"(.+)\.upload-([0-9a-f]{16})", re.DOTALL)


class Block(NamedTuple):
    """A block of an upload: its id, and the part that it holds."""

    block_id: str
    part: PartInfo


def block_id(upload_id: str, part: PartInfo, sent_ms: int) -> str:
    """Return the id of the block for a part."""
    return f"{upload_id}{part.part_number:05}{sent_ms:011x}{part.etag}"


def newest(upload_id: str, blocks: Iterable[tuple[str, int]]) -> dict[int, Block]:
    """Return the blocks of an upload by part number, of (block id, size in bytes): the latest of each."""
    found: dict[int, Block] = {}
    for name, size_bytes in sorted(blocks, key=lambda block: block[0]):
        fields = _BLOCK_ID.fullmatch(name)
        if fields is not None and fields[1] == upload_id:
            number = int(fields[2])
            found[number] = Block(name, PartInfo(part_number=number, etag=fields[4], size_bytes=size_bytes))
    return found


def digests(blocks: Iterable[tuple[str, int]]) -> list[tuple[str, int]] | None:
    """Return MD5 and size in bytes of each block, None if one is not of ours."""
    found = [(_BLOCK_ID.fullmatch(name), size_bytes) for name, size_bytes in blocks]
    if any(fields is None for fields, _ in found):
        return None
    return [(fields[4], size_bytes) for fields, size_bytes in found if fields is not None]


def is_upload_id(text: str) -> bool:
    """Whether an upload can have this id."""
    return _UPLOAD_ID.fullmatch(text) is not None


def record_key(key: str, upload_id: str) -> str:
    """Return the name of the blob that records an upload."""
    return f"{key}.upload-{upload_id}"


def parse_record(name: str) -> tuple[str, str] | None:
    """Return key and upload id of a record's name, None for any other blob."""
    fields = _RECORD.fullmatch(name)
    return (fields[1], fields[2]) if fields is not None else None


def content_of(stored_as: StoredAs) -> bytes:
    """Return what the record of an upload holds."""
    if stored_as == PLAIN:
        return b""
    return json.dumps({"storage_class": stored_as.storage_class, "tags": dict(stored_as.tags)}).encode()


def stored_as_of(content: bytes, *, key: str) -> StoredAs:
    """Return how the object of an upload is stored. Raises CorruptData."""
    if not content:
        return PLAIN
    try:
        found = json.loads(content)
        return StoredAs(str(found["storage_class"]), {str(name): str(value) for name, value in found["tags"].items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(key=key, offset=0, expected="class and tags of an upload", found=str(error)) from error
