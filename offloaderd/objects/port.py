"""The ports to an object store, cut by what a consumer may do: read, write, upload in parts.

A store is one bucket; `at` returns the others that were opened with it.
A reader is handed an ObjectReader and cannot delete. Keys are plain strings made by `keys.py` only. Every method may
raise Transient (with Throttled), Denied, NoSpace and BucketMissing; each says how it treats its own cases.
"""

from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from offloaderd.core.errors import BucketMissing, NotFound

T = TypeVar("T")

Bytes = bytes | bytearray | memoryview
"""What may be stored; adapters send it without a copy."""

Pieces = Sequence[Bytes]
"""What may be stored as a part: one behind the other, which nobody has to join."""

PART_BYTES_MIN = 5 * 1024 * 1024
"""S3's least size of every part but the last."""

PARTS_MAX = 10_000
"""S3's greatest part number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What HEAD or a listing says of an object. `metadata` keys are lower case; empty in listings.

    `etag_opaque`: HEAD says that the store encrypts the object with a key, so its ETag and those of its parts tell
    nothing of their bytes, even where they look like an MD5.
    """

    key: str
    size_bytes: int
    etag: str
    modified_ms: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    etag_opaque: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartInfo:
    """One uploaded part: number from 1, ETag as the store gave it."""

    part_number: int
    etag: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadInfo:
    """One multipart upload that is neither completed nor aborted."""

    key: str
    upload_id: str
    initiated_ms: int


class ObjectReader(Protocol):
    """Read access to a bucket."""

    def at(self, bucket: str) -> "ObjectReader":
        """Return the reader of a bucket, itself for its own. Raises BucketMissing for one that was not opened.

        A store that has no buckets (a directory, the memory) is all of them.
        """

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes from byte `first` (to the end when None), cut at the object's end.

        Raises NotFound for a missing key, InvalidInput for a range that starts at or beyond the end of the object
        (an empty object read whole gives b""), and CorruptData, with nothing read, for an object of more than
        `checks.WHOLE_BYTES_MAX` that is asked for whole.
        """

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """Return what `get` does from byte `first` on, by one request as well, cut into pieces of these lengths.

        There is one for each length; at the object's end the last ones are shorter, or empty. Raises as `get` does.
        """

    async def head(self, key: str) -> ObjectInfo:
        """Return size, ETag and metadata. Raises NotFound."""

    def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield every object whose key starts with `prefix`, in key order, page by page.

        Some servers order folder by folder (`a/b` before `a.b`); the keys of one prefix of ours are all in one.
        """


class ObjectStore(ObjectReader, Protocol):
    """Read and write access to a bucket."""

    def at(self, bucket: str) -> "ObjectStore":
        """See ObjectReader."""

    async def put(
        self, key: str, data: Bytes, *, metadata: Mapping[str, str] | None = None, if_etag: str | None = None
    ) -> ObjectInfo:
        """Store an object whole, replacing what was there; all or nothing. Raises OutcomeUnknown.

        With `if_etag` only in place of the object of that ETag, with "" only where there is none. Raises Conflict when
        something else is there, which may be what an earlier try of the caller has stored. A store that knows no
        conditions stores it in any case.
        """

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; a missing one is no error. Raises OutcomeUnknown; repeating is always safe."""


class MultipartStore(Protocol):
    """S3's multipart protocol. Parts are >= 5 MiB except the last, numbered 1 to 10,000."""

    async def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:
        """Begin an upload and return its id. Raises OutcomeUnknown (a stray upload may exist: list_uploads)."""

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """Store a part of these pieces, replacing one of the same number. Raises NotFound for an unknown upload."""

    async def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """Return the stored parts in order of number. Raises NotFound for an unknown upload."""

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """Make the object visible from exactly these parts.

        Raises InvalidInput when a part is missing, differs or is too small, NotFound for an unknown upload (it may
        have been completed before: read back), OutcomeUnknown when the answer was lost.
        """

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """Drop the upload and its parts; one that is unknown is no error."""

    def list_uploads(self, prefix: str = "") -> AsyncGenerator[UploadInfo, None]:
        """Yield the open uploads whose key starts with `prefix`, in key order."""


class SegmentStore(ObjectStore, MultipartStore, Protocol):
    """All of it: what an adapter implements and the offload engine needs."""

    def at(self, bucket: str) -> "SegmentStore":
        """See ObjectReader."""


async def present(answer: Awaitable[T]) -> T | None:
    """Return an answer about an object, None when it is not there. Raises BucketMissing: that is no missing object."""
    try:
        return await answer
    except BucketMissing:
        raise
    except NotFound:
        return None


async def find(objects: ObjectReader, key: str) -> ObjectInfo | None:
    """Return what is known of an object, None when it is not there. Raises as `present`."""
    return await present(objects.head(key))
