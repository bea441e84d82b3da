"""S3 requests: signed bodies and conditions, and the answers of servers as values of the port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from xml.sax.saxutils import escape

import structlog

from offloaderd.core.errors import BucketMissing, Conflict, NotFound, Transient
from offloaderd.objects.port import ObjectInfo, PartInfo, Pieces, UploadInfo
from offloaderd.objects.request import Body, Call, date_ms
from offloaderd.objects.s3.errors import HINT_ANSWER, is_not_implemented

if TYPE_CHECKING:
    from types_aiobotocore_s3.type_defs import (
        ListMultipartUploadsOutputTypeDef,
        ListObjectsV2OutputTypeDef,
        PartTypeDef,
    )


T = TypeVar("T")


class SignedBody(Body):
    """A body that botocore reads once to sign its hash, without a copy."""

    _at = 0

    def tell(self) -> int:
        """Return the start, where botocore's reads begin each time."""
        return 0

    def seek(self, _offset: int) -> None:
        """Return to the start."""
        self._at = 0

    def read(self, size: int) -> memoryview:
        """Return the next bytes, at most `size` of them; none at the end."""
        skip = self._at
        for view in self._views:
            if skip < len(view):
                found = view[skip : skip + size]
                self._at += len(found)
                return found
            skip -= len(view)
        return memoryview(b"")


def body_of(pieces: Pieces, *, signed: bool) -> Body:
    """Return a request's body; a `signed` one is for connections without TLS."""
    return SignedBody(pieces) if signed else Body(pieces)


def noted(call: Call, answer: T) -> T:
    """Keep the status of botocore's answer, and return the answer."""
    call.status = str(answer["ResponseMetadata"]["HTTPStatusCode"])  # type: ignore[index]  # a typed dict, each
    return answer


log = structlog.get_logger(__name__)


class Conditions:
    """Conditional writes to one bucket: replace exactly the expected object, or create a new one.

    S3 services check the condition when they carry the request out, however late that is. A service without conditions
    either ignores them or answers 501; after that they are not sent any more.
    """

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._known = True

    async def put(
        self, key: str, if_etag: str | None, put: Callable[[dict[str, Any]], Awaitable[ObjectInfo]]
    ) -> ObjectInfo:
        """Store an object under a condition, see ObjectStore; `put` takes the library's parameters."""
        if if_etag is None or not self._known:
            return await put({})
        try:
            return await put({"IfMatch": f'"{if_etag}"'} if if_etag else {"IfNoneMatch": "*"})
        except BucketMissing:
            raise
        except NotFound as error:
            raise Conflict(f"{key} is not there any more: {error}") from error
        except Transient as error:
            if not is_not_implemented(error.__cause__):
                raise
            stored = await put({})  # raises if something else of the request is not supported, such as its tags
            self._known = False
            log.warning("s3.no_conditions", bucket=self._bucket, error=str(error))
            return stored


def bare(etag: str) -> str:
    """Return an ETag without the quotes of HTTP."""
    return etag.strip('"')


_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_ENCRYPTED = "x-amz-server-side-encryption"
_METADATA = "x-amz-meta-"


def is_opaque(headers: Mapping[str, str]) -> bool:
    """Whether an object is encrypted with a key of a service or of ours: then its ETag is no MD5, whatever its form."""
    return headers.get(_ENCRYPTED, "AES256") != "AES256" or f"{_ENCRYPTED}-customer-algorithm" in headers


def described(key: str, headers: Mapping[str, str]) -> ObjectInfo:
    """Return the object of the headers of a HEAD answer, which are found in any case.

    Raises Transient without its size, or without the time by which it may be old enough to delete.
    """
    size_bytes, modified_ms = headers.get("Content-Length"), date_ms(headers, "Last-Modified")
    if size_bytes is None or not modified_ms:
        raise Transient(
            f"HeadObject {key}: no object has Content-Length {size_bytes!r} and Last-Modified "
            f"{headers.get('Last-Modified')!r}",
            hint=HINT_ANSWER,
        )
    named = ((name.lower(), value) for name, value in headers.items())
    return ObjectInfo(
        key=key,
        size_bytes=int(size_bytes),
        etag=bare(headers["ETag"]),
        modified_ms=modified_ms,
        metadata={name.removeprefix(_METADATA): value for name, value in named if name.startswith(_METADATA)},
        etag_opaque=is_opaque(headers),
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


def named_parts(parts: Sequence[PartInfo]) -> bytes:
    """Return the body of a request that completes an upload from these parts."""
    named = "".join(
        f'<Part><ETag>"{escape(part.etag)}"</ETag><PartNumber>{part.part_number}</PartNumber></Part>' for part in parts
    )
    upload = f'<CompleteMultipartUpload xmlns="{_NAMESPACE}">{named}</CompleteMultipartUpload>'
    return upload.encode()


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
            key=found["Key"], upload_id=found["UploadId"], initiated_ms=int(found["Initiated"].timestamp() * 1000)
        )
        for found in page.get("Uploads", [])
    ]
