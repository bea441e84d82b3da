"""The ports to an object store, one for each right: reading, writing, multipart uploads.

A store is one bucket; `at` returns the others that were opened with it. A consumer with an ObjectReader cannot delete.
Only `keys.py` builds keys, which are plain strings. Every method may raise Transient (with Throttled), Denied, NoSpace
and BucketMissing; each documents its own cases.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

from offloaderd.core.errors import BucketMissing, NotFound
from offloaderd.objects.stored_as import PLAIN, StoredAs

T = TypeVar("T")

Bytes = bytes | bytearray | memoryview
"""Content of an object; adapters send it without a copy."""

Pieces = Sequence[Bytes]
"""Content of a part in consecutive pieces, which need not be joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """An object's metadata from HEAD or a listing. Keys of `metadata` are lower case; it is empty in listings.

    `etag_opaque`: according to HEAD the store encrypts the object with a key. Then its ETag and those of its parts are
    no checksums, even if they look like an MD5.
    """

    key: str
    size_bytes: int
    etag: str
    modified_ms: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    etag_opaque: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartInfo:
    """One uploaded part: number from 1, and what the store says of its bytes, see PartRules."""

    part_number: int
    etag: str
    size_bytes: int


def pieces_of(data: Bytes | Pieces) -> Pieces:
    """Return an object's content in pieces, in whichever form it was given."""
    return [data] if isinstance(data, bytes | bytearray | memoryview) else data


def md5(*pieces: Bytes) -> str:
    """Return the MD5 of consecutive pieces, which S3 gives an object or part of one request as its ETag."""
    digest = hashlib.md5(usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRules:
    """What a kind of store takes as a part, and how a listed part is compared with bytes: here by their MD5.

    `bytes_min`: least size of every part but the last. `number_max`: greatest part number, and so number of parts.
    """

    bytes_min: int
    number_max: int

    def described(self, part_number: int, pieces: Pieces) -> PartInfo:
        """Return a part of these bytes as the store lists it, if what it lists is comparable."""
        return PartInfo(part_number=part_number, etag=md5(*pieces), size_bytes=sum(map(len, pieces)))

    def comparable(self, part: PartInfo) -> bool:
        """Whether a listed part follows from its bytes; one that is encrypted with a key does not."""
        return re.fullmatch("[0-9a-f]{32}", part.etag) is not None


S3_PARTS = PartRules(bytes_min=5 * 1024 * 1024, number_max=10_000)
"""S3's, which the memory keeps as well."""

ANY_PARTS = PartRules(bytes_min=1, number_max=S3_PARTS.number_max)
"""Those of a store that takes small parts as well, as a directory does."""

PART_BYTES_MIN = S3_PARTS.bytes_min
"""The same, for what runs on S3 alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadInfo:
    """One multipart upload that is neither completed nor aborted."""

    key: str
    upload_id: str
    initiated_ms: int


class ObjectReader(Protocol):
    """Read access to a bucket."""

    def at(self, bucket: str) -> "ObjectReader":
        """Return the reader of a bucket. Raises BucketMissing for one that was not opened.

        A store without buckets (a directory, the memory) returns itself for all.
        """

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes from byte `first`, or all to the end for None; fewer if the object ends earlier.

        Raises NotFound for a missing key, InvalidInput for a range that starts at or beyond the end (a whole empty
        object is b""), and CorruptData, with nothing read, for a whole object of more than `checks.WHOLE_BYTES_MAX`.
        """

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """Return the bytes of one `get` from byte `first` on, cut into pieces of these lengths.

        There is one piece per length; at the object's end the last ones are shorter, or empty. Raises as `get` does.
        """

    async def head(self, key: str) -> ObjectInfo:
        """Return size, ETag and metadata. Raises NotFound."""

    def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield every object whose key starts with `prefix`, in key order, page by page.

        Some servers order by folder (`a/b` before `a.b`); all keys of one of our prefixes are in one folder.
        """


class ObjectStore(ObjectReader, Protocol):
    """Read and write access to a bucket."""

    def at(self, bucket: str) -> "ObjectStore":
        """See ObjectReader."""

    async def put(
        self,
        key: str,
        data: Bytes | Pieces,
        *,
        metadata: Mapping[str, str] | None = None,
        if_etag: str | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> ObjectInfo:
        """Store a whole object, given in one piece or several, replacing any other, completely or not at all.

        Raises OutcomeUnknown.

        With `if_etag` it replaces only the object of that ETag; with "" it must not exist. Raises Conflict otherwise,
        possibly because an earlier try of the caller has succeeded. A store without conditions ignores `if_etag`, one
        without classes or tags `stored_as`. Raises InvalidInput for a class that the store does not have.
        """

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; a missing one is no error. Raises OutcomeUnknown; can be repeated."""


@runtime_checkable
class SignedUrls(Protocol):
    """A store whose objects others can read by a URL, without credentials of their own."""

    async def signed_url(self, key: str, valid_s: int) -> str:
        """Return a URL by which anyone can GET an object, or ranges of it, for `valid_s`. No request is sent.

        It may be valid for less time: until the credentials expire. "": the settings do not allow one. Raises Denied
        and Transient where the credentials cannot be had.
        """


class MultipartStore(Protocol):
    """Uploads in parts that survive a crash of who sends them, as S3 has them."""

    @property
    def parts(self) -> PartRules:
        """What this store takes as a part."""

    async def create_upload(
        self, key: str, *, metadata: Mapping[str, str] | None = None, stored_as: StoredAs = PLAIN
    ) -> str:
        """Begin an upload and return its id. Raises OutcomeUnknown (a stray upload may exist: list_uploads).

        `stored_as` as in ObjectStore.put.
        """

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """Store a part of these pieces, replacing one with the same number. Raises NotFound for an unknown upload."""

    async def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """Return the stored parts in order of number. Raises NotFound for an unknown upload."""

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """Create the object from exactly these parts.

        Raises InvalidInput if a part is missing, differs or is too small, NotFound for an unknown upload (it may have
        been completed before: read back), OutcomeUnknown if the answer was lost.
        """

    async def made_of(self, stored: ObjectInfo, parts: Sequence[PartInfo]) -> bool | None:
        """Return whether an object was completed from exactly these parts; None if the store cannot tell.

        `stored` is from `head`.
        """

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """Delete the upload and its parts; an unknown one is no error."""

    def list_uploads(self, prefix: str = "") -> AsyncGenerator[UploadInfo, None]:
        """Yield the open uploads whose key starts with `prefix`, in key order."""


class SegmentStore(ObjectStore, MultipartStore, Protocol):
    """The whole port, as adapters implement it and the offload engine needs it."""

    def at(self, bucket: str) -> "SegmentStore":
        """See ObjectReader."""


async def present(answer: Awaitable[T]) -> T | None:
    """Return an answer about an object, None if the object is missing. Raises BucketMissing if its bucket is."""
    try:
        return await answer
    except BucketMissing:
        raise
    except NotFound:
        return None


async def find(objects: ObjectReader, key: str) -> ObjectInfo | None:
    """Return an object's metadata, None if it does not exist. Raises as `present`."""
    return await present(objects.head(key))
