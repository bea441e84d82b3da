"""The object store over Google Cloud Storage: one request per method, retried by nobody here.

Retries are the engine's, which knows when an outcome has to be read back first. Bodies are sent from the caller's
memory; a range is read into the pieces that the caller wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from offloaderd.core.aio import Group
from offloaderd.core.clock import Clock, SystemClock
from offloaderd.core.errors import BucketMissing, Conflict, InvalidInput, NotFound, OffloaderError, Transient, first_of
from offloaderd.objects.buckets import Buckets
from offloaderd.objects.checks import (
    check_key,
    check_part_number,
    checked_metadata,
    chosen_parts,
    combined_etag,
    made_of,
)
from offloaderd.objects.failures import hints_in
from offloaderd.objects.gcs import uploads
from offloaderd.objects.gcs.bucket_rules import rules_of, versioning_of
from offloaderd.objects.gcs.request import (
    CONTENT_TYPE,
    ETAG,
    FIELDS,
    Connection,
    as_json,
    crc32c_of,
    etag_of,
    info_of,
    time_ms,
    upload,
)
from offloaderd.objects.life_cycle import LifeCycleRule, Versioning
from offloaderd.objects.port import (
    ANY_PARTS,
    Bytes,
    ObjectInfo,
    PartInfo,
    PartRules,
    Pieces,
    UploadInfo,
    pieces_of,
    present,
)
from offloaderd.objects.ranged import RangedGet
from offloaderd.objects.request import BYTES_PER_S_MIN, Body, RequestMetrics
from offloaderd.objects.stored_as import PLAIN, StoredAs

if TYPE_CHECKING:
    from offloaderd.objects.settings import ServiceSettings

T = TypeVar("T")

AT_ONCE = 16
"""Requests of one call that deletes or composes many objects."""
PAGE_KEYS_MAX = 1000
"""Google's limit on the objects of one page."""
CREATED_BY = "offloaderd"
"""Project of a bucket that is created at an emulator, which wants one named and does not look at it."""


class GcsStore(Buckets):
    """Implements SegmentStore; an async context manager. Google composes parts of any size."""

    parts: PartRules = ANY_PARTS
    has_clock = True

    def __init__(
        self,
        options: ServiceSettings,
        metrics: RequestMetrics | None = None,
        clock: Clock | None = None,
        *,
        page_keys: int = PAGE_KEYS_MAX,
        bytes_per_s_min: int = BYTES_PER_S_MIN,
    ) -> None:
        """Take the bucket and the access to the service; other places are opened with the same credentials.

        A transfer slower than `bytes_per_s_min`, after the time that every request has, fails.
        """
        super().__init__(options.bucket, options.section)
        self._options = options
        self._clock = clock or SystemClock()
        self._page_keys = page_keys
        self._http = Connection(options, self._clock, metrics, bytes_per_s_min)
        self._bucket = f"/storage/v1/b/{options.bucket}"
        self._add_places(options, lambda there: GcsStore(there, metrics, self._clock))

    async def open(self) -> None:
        """See BucketStore."""
        await self._http.open()

    async def close(self) -> None:
        """See BucketStore."""
        await self._http.close()

    def __str__(self) -> str:
        return self._http.where

    async def check(self) -> None:
        """Request the first key of the bucket. Raises BucketMissing, Denied and Transient with a remedy."""
        with hints_in(self.section):
            try:
                await self._http.described(
                    "ListObjects", "GET", f"{self._bucket}/o", query={"maxResults": 1, "fields": f"items({FIELDS})"}
                )
            except BucketMissing:
                raise
            except NotFound as error:
                raise BucketMissing(error.message, hint="create the bucket, or correct objects.bucket") from error

    async def create_bucket(self, project: str = CREATED_BY) -> None:
        """Create the bucket in a project; no error if it exists and is ours. Raises Conflict if it is another's."""
        try:
            await self._http.described(
                "CreateBucket",
                "POST",
                "/storage/v1/b",
                query={"project": project},
                body=as_json({"name": self._options.bucket}),
                write=True,
            )
        except Conflict:
            try:
                await self.check()
            except OffloaderError as error:
                raise Conflict(f"bucket {self._options.bucket} belongs to somebody else: {error}") from error

    async def life_cycle_rules(self) -> list[LifeCycleRule]:
        """See LifeCycle."""
        return rules_of(await self._http.described("GetBucket", "GET", self._bucket, query={"fields": "lifecycle"}))

    async def versioning(self) -> Versioning:
        """See LifeCycle."""
        query = {"fields": "versioning,softDeletePolicy,retentionPolicy,defaultEventBasedHold"}
        return versioning_of(await self._http.described("GetBucket", "GET", self._bucket, query=query))

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """See ObjectReader."""
        return (await self._get(RangedGet(key, first, length)))[0]

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """See ObjectReader."""
        return await self._get(RangedGet(key, first, sum(lengths), lengths))

    async def _get(self, wanted: RangedGet) -> Sequence[bytes]:
        key = wanted.key

        async def pieces() -> Sequence[bytes]:
            async with self._http.request(
                "GetObject", "GET", self._path(key), key=key, query={"alt": "media"}, headers=wanted.headers
            ) as (call, answer):
                return await wanted.read(call, answer, self._http.bytes_per_s_min)

        return await self._there(pieces)

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectReader."""
        check_key(key)
        return info_of(await self._there(lambda: self._described(key)))

    async def _described(self, key: str) -> Mapping[str, Any]:
        return await self._http.described("HeadObject", "GET", self._path(key), key=key, query={"fields": FIELDS})

    async def _there(self, request: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of a request for an object; after a 404 a second request checks the bucket."""
        try:
            return await request()
        except BucketMissing:
            raise
        except NotFound as error:
            if "No such object" not in error.message:
                await self.check()
            raise

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """See ObjectReader."""
        async with aclosing(self._listed(prefix)) as found:
            async for described in found:
                if not described["name"].startswith(uploads.ROOT):
                    yield info_of(described, metadata=False)

    async def _listed(self, prefix: str) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the descriptions of all objects whose key starts with `prefix`, in key order."""
        query: dict[str, str | int] = {"prefix": prefix, "maxResults": self._page_keys}
        query["fields"] = f"nextPageToken,items({FIELDS})"
        while True:
            page = await self._http.described("ListObjects", "GET", f"{self._bucket}/o", key=prefix, query=query)
            for described in page.get("items", []):
                yield described
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    async def put(
        self,
        key: str,
        data: Bytes | Pieces,
        *,
        metadata: Mapping[str, str] | None = None,
        if_etag: str | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> ObjectInfo:
        """See ObjectStore. The service compares generations, so the one with that ETag is asked for before.

        Objects get the bucket's own class, and no tags: settings and policies refuse others.
        """
        check_key(key)
        named = checked_metadata(metadata)
        generation: str | None = None
        if if_etag is not None:
            generation = await self._generation(key, if_etag) if if_etag else "0"
        return info_of(await self._insert(key, pieces_of(data), named, generation))

    async def _generation(self, key: str, etag: str) -> str:
        """Return the generation of an object with that ETag. Raises Conflict."""
        try:
            described = await self._there(lambda: self._described(key))
        except BucketMissing:
            raise
        except NotFound as error:
            raise Conflict(f"{key} is not there any more: {error}") from error
        if etag_of(described) != etag:
            raise Conflict(f"{key} is {etag_of(described)} instead of {etag}")
        return str(described["generation"])

    async def _insert(
        self, key: str, pieces: Pieces, metadata: Mapping[str, str], generation: str | None = None
    ) -> Mapping[str, Any]:
        """Store an object, if there is a `generation` only in its place; "0" is none."""
        body, content_type = upload(key, pieces, metadata, self._clock.uuid().hex)
        query: dict[str, str | int] = {"uploadType": "multipart", "fields": FIELDS}
        if generation is not None:
            query["ifGenerationMatch"] = generation
        return await self._sent(key, query, body, {"Content-Type": content_type})

    async def _sent(
        self, key: str, query: Mapping[str, str | int], body: Body, headers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """Send what is to be an object; return its description."""
        return await self._there(
            lambda: self._http.described(
                "InsertObject",
                "POST",
                f"/upload{self._bucket}/o",
                key=key,
                query=query,
                body=body,
                headers=headers,
                write=True,
            )
        )

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore; the first refusal is raised once all have been sent."""
        for key in keys:
            check_key(key)
        await self._side_by_side([partial(self._delete, key) for key in keys])

    async def _delete(self, key: str, generation: str | None = None) -> None:
        """Delete an object, or one generation of it, which a bucket with versions does not keep; none is no error."""
        query = {"generation": generation} if generation is not None else {}

        async def deleted() -> None:
            async with self._http.request("DeleteObject", "DELETE", self._path(key), key=key, query=query, write=True):
                pass

        await present(self._there(deleted))

    async def _side_by_side(self, requests: Sequence[Callable[[], Awaitable[T]]]) -> Sequence[T]:
        """Send requests, AT_ONCE at a time, and return their results in order. Raises the first error after all."""
        turns = asyncio.Semaphore(AT_ONCE)
        errors: list[OffloaderError] = []
        results: dict[int, T] = {}

        async def one(number: int, request: Callable[[], Awaitable[T]]) -> None:
            async with turns:
                try:
                    results[number] = await request()
                except OffloaderError as error:
                    errors.append(error)

        try:
            async with Group() as group:
                for number, request in enumerate(requests):
                    group.create_task(one(number, request), name="request for one of many objects")
        except BaseExceptionGroup as raised:
            raise first_of(raised) from None
        if errors:
            raise errors[0]
        return [results[number] for number in range(len(requests))]

    async def create_upload(
        self, key: str, *, metadata: Mapping[str, str] | None = None, stored_as: StoredAs = PLAIN
    ) -> str:
        """See MultipartStore."""
        check_key(key)
        named = checked_metadata(metadata)
        upload_id = self._clock.uuid().hex
        check_key(uploads.join_of(key, upload_id, 1, 0))  # the longest of an upload
        await self._insert(uploads.first_of(key, upload_id), [], named, "0")
        return upload_id

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """See MultipartStore. One that is sent while its upload ends may be left; `list_uploads` has it.

        Whether the upload exists is asked while the part is sent; one that was stored without it is deleted.
        """
        check_key(key)
        check_part_number(self.parts, part_number)
        first, name = uploads.first_of(key, upload_id), uploads.part_of(key, upload_id, part_number)
        stored: list[Mapping[str, Any]] = []

        async def send() -> None:
            stored.append(await self._insert_part(name, pieces))

        try:
            async with Group() as group:
                group.create_task(self._there(lambda: self._described(first)), name=f"look for {first}")
                group.create_task(send(), name=f"send {name}")
        except BaseExceptionGroup as raised:
            error = first_of(raised)
            if isinstance(error, NotFound) and stored:
                await self._delete(name, str(stored[0]["generation"]))
            raise error from None
        (described,) = stored
        return PartInfo(part_number=part_number, etag=etag_of(described), size_bytes=int(described.get("size", 0)))

    async def _insert_part(self, name: str, pieces: Pieces) -> Mapping[str, Any]:
        """Store a part with its bytes as the whole body, and compare what was stored by its CRC-32C.

        The service refuses a body that does not fit its header. A part that was stored all the same is replaced by the
        next try; until then its MD5 shows in listings that it is another one. Raises Transient for either.
        """
        crc = crc32c_of(pieces)
        query: dict[str, str | int] = {"uploadType": "media", "name": name, "fields": FIELDS}
        headers = {"Content-Type": CONTENT_TYPE, "X-Goog-Hash": f"crc32c={crc}"}
        described = await self._sent(name, query, Body(pieces), headers)
        if described.get("crc32c") != crc:
            raise Transient(
                f"{name} was damaged on the way: stored with CRC32C {described.get('crc32c')}, sent with {crc}"
            )
        return described

    async def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """See MultipartStore."""
        found = await self._upload(key, upload_id)
        return [info for _, (info, _) in sorted(found.parts.items())]

    async def _upload(self, key: str, upload_id: str, *, ended: bool = False) -> uploads.Upload:
        """Return everything of an upload. Raises NotFound, unless one that has `ended` is wanted too.

        A listing has no checksums of objects that are encrypted with a key of the customer: each is asked for.
        """
        check_key(key)
        found = uploads.Upload()
        bare: list[str] = []
        async with aclosing(self._listed(uploads.folder(key, upload_id))) as listed:
            async for described in listed:
                if not ended and "md5Hash" not in described and uploads.is_part(described["name"]):
                    bare.append(described["name"])
                else:
                    found.add(described, etag_of(described))
        if found.metadata is None and not ended:
            raise NotFound(f"there is no upload {upload_id} of {key} in {self._http.where}")
        for one in await self._side_by_side([partial(self._present, name) for name in bare]):
            if one is not None:
                found.add(one, etag_of(one))
        return found

    async def _present(self, name: str) -> Mapping[str, Any] | None:
        return await present(self._there(lambda: self._described(name)))

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """See MultipartStore. The object exists once it is composed; then the upload ends and its parts are deleted.

        A part that is replaced meanwhile, perhaps by a late request with the same bytes, is compared by another try.
        """
        found = await self._upload(key, upload_id)
        stored = {number: info for number, (info, _) in found.parts.items()}
        chosen = chosen_parts(parts, stored, self.parts.bytes_min)
        sources: Sequence[uploads.Stored] = [found.parts[part.part_number][1] for part in chosen]
        try:
            sources = await self._joined(key, upload_id, found, sources)
            described = await self._composed(key, sources, {**(found.metadata or {}), ETAG: combined_etag(chosen)})
        except BucketMissing:
            raise
        except (Conflict, NotFound) as error:
            raise Transient(f"a part of {key} was replaced or deleted while they were composed: {error}") from error
        info = info_of(described)
        size_bytes = sum(part.size_bytes for part in chosen)
        if info.size_bytes != size_bytes:
            raise InvalidInput(f"{key} was composed with {info.size_bytes} bytes, its parts have {size_bytes}")
        await self._end(found)
        return info

    async def _joined(
        self, key: str, upload_id: str, upload: uploads.Upload, sources: Sequence[uploads.Stored]
    ) -> Sequence[uploads.Stored]:
        """Return at most SOURCES_MAX objects with the bytes of the sources; new ones are added to the upload."""

        async def joined(name: str, group: Sequence[uploads.Stored]) -> uploads.Stored:
            return uploads.Stored.of(await self._composed(name, group, {}))

        level = 0
        while len(sources) > uploads.SOURCES_MAX:
            level += 1
            names = [uploads.join_of(key, upload_id, level, number) for number in range(len(sources))]
            groups = zip(names, uploads.grouped(sources), strict=False)
            sources = await self._side_by_side([partial(joined, name, group) for name, group in groups])
            upload.objects += sources
        return sources

    async def _composed(
        self, key: str, sources: Sequence[uploads.Stored], metadata: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """Make one object of others in exactly these generations. Raises Conflict if one was replaced meanwhile."""
        wanted = {
            "sourceObjects": [
                {
                    "name": one.name,
                    "generation": one.generation,
                    "objectPreconditions": {"ifGenerationMatch": one.generation},
                }
                for one in sources
            ],
            "destination": {"contentType": CONTENT_TYPE, "metadata": dict(metadata)},
        }
        return await self._there(
            lambda: self._http.described(
                "ComposeObjects",
                "POST",
                f"{self._path(key)}/compose",
                key=key,
                query={"fields": FIELDS},
                body=as_json(wanted),
                write=True,
            )
        )

    async def made_of(self, stored: ObjectInfo, parts: Sequence[PartInfo]) -> bool | None:
        """See MultipartStore. Google checks what it composes; the ETag is what was asked for in the same request."""
        return made_of(self.parts, stored, parts)

    async def _end(self, upload: uploads.Upload) -> None:
        """Delete everything of an upload: first that which makes it one."""
        for group in upload.in_order_of_deletion:
            await self._side_by_side([partial(self._delete, one.name, one.generation) for one in group])

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """See MultipartStore."""
        await self._end(await self._upload(key, upload_id, ended=True))

    async def list_uploads(self, prefix: str = "") -> AsyncGenerator[UploadInfo, None]:
        """See MultipartStore. Parts that a crash left of an upload that has ended are one as well."""
        async with aclosing(self._listed(uploads.ROOT + prefix)) as listed:
            found = await uploads.open_uploads(listed, prefix, time_ms)
        for one in found:
            yield one

    def _path(self, key: str) -> str:
        return f"{self._bucket}/o/{quote(key, safe='')}"
