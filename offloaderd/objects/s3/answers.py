"""Answers of S3 servers as values of the port."""

from __future__ import annotations

import email.utils
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from offloaderd.core.errors import Transient
from offloaderd.objects.port import ObjectInfo, PartInfo, UploadInfo

if TYPE_CHECKING:
    from aiobotocore.response import AioStreamingBody  # type: ignore[import-untyped]
    from types_aiobotocore_s3.type_defs import (
        HeadObjectOutputTypeDef,
        ListMultipartUploadsOutputTypeDef,
        ListObjectsV2OutputTypeDef,
        PartTypeDef,
    )

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def date_ms(headers: Mapping[str, str]) -> int:
    """Return the server's time of an answer, about that of the object it stored; 0 without one."""
    try:
        return int(email.utils.parsedate_to_datetime(headers.get("date", "")).timestamp() * 1000)
    except ValueError:
        return 0


def bare(etag: str) -> str:
    """Return an ETag without the quotes of HTTP."""
    return etag.strip('"')


def is_opaque(answer: HeadObjectOutputTypeDef) -> bool:
    """Whether an object is encrypted with a key of a service or of ours: then its ETag is no MD5, whatever its form."""
    return answer.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in answer


def described(key: str, answer: HeadObjectOutputTypeDef) -> ObjectInfo:
    """Return the object of a HEAD answer."""
    return ObjectInfo(
        key=key,
        size_bytes=answer["ContentLength"],
        etag=bare(answer["ETag"]),
        modified_ms=int(answer["LastModified"].timestamp() * 1000),
        metadata={name.lower(): value for name, value in answer["Metadata"].items()},
        etag_opaque=is_opaque(answer),
    )


def listed(page: ListObjectsV2OutputTypeDef) -> list[ObjectInfo]:
    """Return the objects of one page of a listing."""
    return [
        ObjectInfo(
            key=found["Key"],
            size_bytes=found["Size"],
            etag=bare(found["ETag"]),
            modified_ms=int(found["LastModified"].timestamp() * 1000),
        )
        for found in page.get("Contents", [])
    ]


def parts_of(found: Sequence[PartTypeDef]) -> list[PartInfo]:
    """Return the parts of an upload in order of number, the newest of each."""
    newest = {part["PartNumber"]: part for part in sorted(found, key=lambda part: part["LastModified"])}
    return [
        PartInfo(part_number=number, etag=bare(part["ETag"]), size_bytes=part["Size"])
        for number, part in sorted(newest.items())
    ]


def uploads_of(page: ListMultipartUploadsOutputTypeDef) -> list[UploadInfo]:
    """Return the open uploads of one page of their list."""
    return [
        UploadInfo(
            key=found["Key"],
            upload_id=found["UploadId"],
            initiated_ms=int(found["Initiated"].timestamp() * 1000),
        )
        for found in page.get("Uploads", [])
    ]


def check_answered_range(call: object, answered: str, size_bytes: int, first: int, length: int | None) -> None:
    """Check that the answer has the requested bytes, cut only by the object's end. Raises Transient."""
    found = _RANGE.fullmatch(answered)
    if found is None:
        raise Transient(f"{call}: the server does not say which bytes it sent ({answered!r})")
    begin, last, total = map(int, found.groups())
    end = total if length is None else min(total, first + length)
    if (begin, last + 1, size_bytes) != (first, end, end - first):
        raise Transient(f"{call}: asked for bytes {first} to {end - 1}, got {size_bytes} of {answered!r}")


async def in_pieces(body: AioStreamingBody, size_bytes: int, lengths: Sequence[int]) -> Sequence[bytes]:
    """Return a body of that size in pieces of these lengths, or shorter ones if it ends earlier.

    Each byte is copied once, from the socket's buffer to its piece. Further bytes, which were not requested, are added
    to the last piece. Raises aiohttp's errors.
    """
    stream = body.raw_stream.content
    stream.set_read_chunk_size(max(1, size_bytes))  # else aiohttp often stops reading from the socket
    pieces: list[bytes] = []
    came: list[bytes | memoryview] = []
    missing = lengths[0]
    async for chunk, _ in stream.iter_chunks():
        rest = memoryview(chunk)
        while len(rest) >= missing and len(pieces) < len(lengths) - 1:
            pieces.append(b"".join((*came, rest[:missing])))
            came, rest, missing = [], rest[missing:], lengths[len(pieces)]
        came.append(rest)
        missing -= len(rest)
    pieces.append(b"".join(came))
    return pieces + [b""] * (len(lengths) - len(pieces))
