"""Checks of arguments, common to all object stores."""

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from offloaderd.core.errors import Conflict, CorruptData, InvalidInput
from offloaderd.objects.port import Bytes, ObjectInfo, PartInfo, PartRules, md5

KEY_BYTES_MAX = 1024
METADATA_BYTES_MAX = 2048
WHOLE_BYTES_MAX = 32 << 20
"""Largest index or manifest: one of 100 GiB has 17 MiB with usual blocks, one of 1 GiB 0.2 MiB."""
_METADATA_KEY = re.compile(r"[a-z0-9][a-z0-9._-]*")
_METADATA_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")


def check_key(key: str) -> None:
    """Refuse a key that S3 would refuse or that cannot be displayed. Raises InvalidInput."""
    if not key or len(key.encode("utf-8", "surrogatepass")) > KEY_BYTES_MAX:
        raise InvalidInput(f"object key {key[:40]!r}... must have 1 to {KEY_BYTES_MAX} bytes")
    if not key.isprintable():
        raise InvalidInput(f"object key {key!r} has characters that cannot be printed")


def check_range(key: str, first: int, length: int | None) -> None:
    """Refuse an invalid range. Raises InvalidInput."""
    if first < 0 or (length is not None and length < 1):
        raise InvalidInput(f"range of {length} bytes from byte {first} of {key}: must be at least 1 byte from 0 on")


def check_whole(key: str, size_bytes: int, first: int, length: int | None) -> None:
    """Refuse to read a whole object that is too large for an index or a manifest. Raises CorruptData."""
    if first == 0 and length is None and size_bytes > WHOLE_BYTES_MAX:
        raise CorruptData(
            key=key, offset=0, expected=f"an index or a manifest of at most {WHOLE_BYTES_MAX} bytes", found=size_bytes
        )


def cut_range(key: str, size_bytes: int, first: int, length: int | None) -> tuple[int, int]:
    """Return begin and end of the range within an object of that size; (0, 0) for all of an empty object.

    Raises InvalidInput for a range that starts at or beyond the end, CorruptData as `check_whole`.
    """
    check_range(key, first, length)
    check_whole(key, size_bytes, first, length)
    if first == 0 and length is None:
        return 0, size_bytes
    if first >= size_bytes:
        raise InvalidInput(f"range from byte {first} of {key}: the object has {size_bytes} bytes")
    return first, size_bytes if length is None else min(size_bytes, first + length)


def checked_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return user metadata with keys in lower case, as every store returns them.

    Raises InvalidInput for text that an HTTP header cannot carry unchanged, or for more than S3 accepts.
    """
    checked = {key.lower(): value for key, value in (metadata or {}).items()}
    for key, value in checked.items():
        if not (_METADATA_KEY.fullmatch(key) and _METADATA_VALUE.fullmatch(value)):
            raise InvalidInput(f"user metadata {key!r}: {value!r} does not fit into an HTTP header")
    if sum(len(key) + len(value) for key, value in checked.items()) > METADATA_BYTES_MAX:
        raise InvalidInput(f"user metadata has more than {METADATA_BYTES_MAX} bytes")
    return checked


def check_condition(key: str, if_etag: str | None, etag: str) -> None:
    """Refuse to replace an object unless it has the expected ETag; "" is no object. Raises Conflict."""
    if if_etag is not None and if_etag != etag:
        raise Conflict(f"{key} is {etag or 'not there'} instead of {if_etag or 'not there'}")


def check_part_number(rules: PartRules, part_number: int) -> None:
    """Refuse a number that the store does not take. Raises InvalidInput."""
    if not 1 <= part_number <= rules.number_max:
        raise InvalidInput(f"part number {part_number} is not one of 1 to {rules.number_max}")


def check_parts(parts: Sequence[PartInfo]) -> None:
    """Refuse a list that cannot complete an upload: empty, or not in ascending order. Raises InvalidInput."""
    if not parts:
        raise InvalidInput("an upload cannot be completed without parts")
    numbers = [part.part_number for part in parts]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        raise InvalidInput("parts are not in ascending order of their numbers")


def cut(data: bytes, lengths: Sequence[int], begin: int = 0) -> Sequence[bytes]:
    """Return consecutive pieces of these lengths from `begin` on; if the bytes end early, the last ones are shorter."""
    ends = list(accumulate(lengths, initial=begin))
    return [data[start:end] for start, end in pairwise(ends)]


def flat(data: Bytes) -> memoryview:
    """Return a view of the single bytes, whatever items the caller's view has."""
    return memoryview(data).cast("B")


def combined_etag(parts: Sequence[PartInfo]) -> str:
    """ETag of an object made of parts, as in S3: MD5 over the parts' MD5s, and their number."""
    return f"{md5(b''.join(bytes.fromhex(part.etag) for part in parts))}-{len(parts)}"


def made_of(rules: PartRules, stored: ObjectInfo, parts: Sequence[PartInfo]) -> bool | None:
    """Return whether an ETag is the combined one of these parts; None if it, or one of theirs, is no checksum."""
    told = not stored.etag_opaque and all(map(rules.comparable, parts)) and stored.etag.endswith(f"-{len(parts)}")
    return stored.etag == combined_etag(parts) if told else None


def chosen_parts(wanted: Sequence[PartInfo], stored: Mapping[int, PartInfo], part_bytes_min: int) -> Sequence[PartInfo]:
    """Return the stored parts of an upload.

    Raises InvalidInput if a part is missing, has another ETag, or is too small without being the last.
    """
    check_parts(wanted)
    chosen = []
    for part in wanted:
        found = stored.get(part.part_number)
        if found is None or found.etag != part.etag:
            raise InvalidInput(f"part {part.part_number} was not stored, or not with ETag {part.etag}")
        chosen.append(found)
    for part in chosen[:-1]:
        if part.size_bytes < part_bytes_min:
            raise InvalidInput(f"part {part.part_number} of {part.size_bytes} bytes is smaller than {part_bytes_min}")
    return chosen
