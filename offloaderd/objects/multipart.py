"""S3's rules of multipart completion, for the adapters that have no S3 behind them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from offloaderd.core.errors import InvalidInput
from offloaderd.objects.checks import check_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offloaderd.objects.port import Bytes, PartInfo


def md5(*pieces: Bytes) -> str:
    """ETag of an object or part that was sent by one request, in pieces one behind the other."""
    digest = hashlib.md5(usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def combined_etag(parts: Sequence[PartInfo]) -> str:
    """ETag of an object made from parts, as S3 builds it: MD5 over their MD5s, and their number."""
    return f"{md5(b''.join(bytes.fromhex(part.etag) for part in parts))}-{len(parts)}"


def chosen_parts(wanted: Sequence[PartInfo], stored: Mapping[int, PartInfo], part_bytes_min: int) -> Sequence[PartInfo]:
    """Return the stored parts that complete the upload.

    Raises InvalidInput when one is missing, has another ETag, or is too small without being the last.
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
