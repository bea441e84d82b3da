"""The S3 adapter, on aiobotocore; works with any server that supports S3's multipart protocol.

Each call makes one attempt, as the engine retries (only aiohttp repeats a GET, HEAD, PUT or DELETE once if its
connection breaks, as the server may have dropped a pooled one). Every request has a deadline that grows with its size.
A body is sent from the caller's memory without a copy, and is hashed only without TLS (`sign_payloads`). `errors.py`
translates the errors of the libraries.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from botocore.exceptions import ClientError

from offloaderd.core.clock import Clock, SystemClock
from offloaderd.core.errors import Denied, NotFound, OffloaderError
from offloaderd.objects.buckets import Buckets
from offloaderd.objects.checks import (
    check_key,
    check_part_number,
    check_parts,
    checked_metadata,
    made_of,
)
from offloaderd.objects.failures import Request, hints_in
from offloaderd.objects.life_cycle import LifeCycleRule, Versioning
from offloaderd.objects.port import S3_PARTS, Bytes, ObjectInfo, PartInfo, PartRules, Pieces, UploadInfo, pieces_of
from offloaderd.objects.ranged import RangedGet
from offloaderd.objects.request import (
    BYTES_PER_S_MIN,
    Body,
    Call,
    RequestMetrics,
    calling,
    date_ms,
)
from offloaderd.objects.s3.bucket_rules import NO_RULES, rules_of, versioning_of
from offloaderd.objects.s3.client import Clients, Opened
from offloaderd.objects.s3.errors import ANSWERS, failure, is_elsewhere, is_not_implemented
from offloaderd.objects.s3.request import (
    Conditions,
    bare,
    body_of,
    described,
    listed,
    named_parts,
    noted,
    parts_of,
    uploads_of,
)
from offloaderd.objects.settings import ServiceSettings
from offloaderd.objects.stored_as import PLAIN, StoredAs
from offloaderd.objects.tagging import Tagging

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.type_defs import PartTypeDef

    from offloaderd.objects.s3.sender import Answer

T = TypeVar("T")

DELETE_KEYS_MAX = 1000
"""S3's limit on the keys of one DeleteObjects."""

_CONTENT_TYPE = "application/octet-stream"


class S3Store(Buckets):
    """Implements SegmentStore; an async context manager."""

    parts: PartRules = S3_PARTS
    has_clock = True

    def __init__(
        self,
        options: ServiceSettings,
        metrics: RequestMetrics | None = None,
        clock: Clock | None = None,
        *,
        page_keys: int = 1000,
        bytes_per_s_min: int = BYTES_PER_S_MIN,
    ) -> None:
        """Take the bucket and the access to its service; other places are opened with the same credentials.

        A transfer slower than `bytes_per_s_min`, after the time that every request has, fails.
        """
        super().__init__(options.bucket, options.section)
        self._options = options
        self._page_keys = page_keys
        self._bytes_per_s_min = bytes_per_s_min
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._bucket_name = f"bucket {options.bucket} at {options.endpoint or f'S3 in {options.region}'}"
        self._clients = Clients(options, self._bucket_name, self._clock)
        self._conditions = Conditions(options.bucket)
        self._tagging = Tagging(options.bucket, self._clock, lambda error: is_not_implemented(error.__cause__))
        self._add_places(options, lambda there: S3Store(there, metrics, self._clock))

    async def open(self) -> None:
        """See BucketStore."""
        await self._clients.open()

    async def close(self) -> None:
        """See BucketStore."""
        await self._clients.close()

    def __str__(self) -> str:
        return self._bucket_name

    @property
    def tags_refused(self) -> str:
        """See TagsRefused."""
        return self._tagging.refused

    async def check(self) -> None:
        """Request the first key of the bucket. Raises BucketMissing, Denied and Transient with a remedy."""
        async with self._request("ListObjectsV2") as (call, client):
            noted(call, await client.list_objects_v2(Bucket=self._options.bucket, MaxKeys=1))

    async def life_cycle_rules(self) -> list[LifeCycleRule]:
        """See LifeCycle."""
        async with self._request("GetBucketLifecycleConfiguration") as (call, client):
            try:
                answer = await client.get_bucket_lifecycle_configuration(Bucket=self._options.bucket)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") != NO_RULES:
                    raise
                return []
            return rules_of(noted(call, answer))

    async def versioning(self) -> Versioning:
        """See LifeCycle."""
        async with self._request("GetBucketVersioning") as (call, client):
            return versioning_of(noted(call, await client.get_bucket_versioning(Bucket=self._options.bucket)))

    async def create_bucket(self) -> None:
        """Create the bucket; no error if it exists and is ours. Raises Conflict if it is another account's."""
        options = self._options
        place: Any = {}
        if options.endpoint is None and options.region != "us-east-1":
            place = {"CreateBucketConfiguration": {"LocationConstraint": options.region}}
        async with self._request("CreateBucket", write=True) as (call, client):
            try:
                noted(call, await client.create_bucket(Bucket=options.bucket, **place))
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") != "BucketAlreadyOwnedByYou":
                    raise

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """See ObjectReader."""
        return (await self._get(RangedGet(key, first, length)))[0]

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """See ObjectReader."""
        return await self._get(RangedGet(key, first, sum(lengths), lengths))

    async def signed_url(self, key: str, valid_s: int) -> str:
        """See SignedUrls; none where another host is signed than the one that is connected to."""
        check_key(key)
        if self._options.signed_host is not None:
            return ""
        async with self._opened("GetObject", key, sent=False) as (_, opened):  # which may renew credentials
            return await opened.sender.signed_url(key, valid_s)

    async def _get(self, wanted: RangedGet) -> Sequence[bytes]:
        async def once() -> Sequence[bytes]:
            async with (
                self._opened("GetObject", wanted.key) as (call, opened),
                await opened.sender.send("GetObject", wanted.key, wanted.headers) as answer,
            ):
                return await wanted.read(call, answer, self._bytes_per_s_min)

        return await self._in_region(once)

    async def _answered(
        self,
        operation: str,
        key: str,
        parameters: Mapping[str, Any],
        body: Body | bytes = b"",
        *,
        named: str = "ETag",
        write: bool = True,
    ) -> Answer:
        """Send a request whose answer is short; see Sender."""

        async def once() -> Answer:
            async with self._opened(operation, key, size_bytes=len(body), write=write) as (call, opened):
                answer = await opened.sender.answered(operation, key, parameters, body, named)
                call.status, call.bytes_out = str(answer.status), len(body)
                return answer

        return await self._in_region(once)

    async def _in_region(self, once: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of a request of the sender, which is sent again if the bucket is in another region."""
        try:
            return await once()
        except OffloaderError as error:
            if not is_elsewhere(error.__cause__):
                raise
        await self.check()  # by which botocore learns of the bucket's region
        return await once()

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectReader. After a 404 a second request checks the bucket, as HEAD does not say what is missing."""
        check_key(key)
        try:
            answer = await self._answered("HeadObject", key, {}, write=False)
        except NotFound:
            await self.check()
            raise
        with hints_in(self.section):
            return described(key, answer.headers)

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """See ObjectReader."""
        more: Any = {"MaxKeys": self._page_keys}
        while True:
            async with self._request("ListObjectsV2", prefix) as (call, client):
                page = noted(call, await client.list_objects_v2(Bucket=self._options.bucket, Prefix=prefix, **more))
            for info in listed(page):
                yield info
            if not page.get("IsTruncated"):
                return
            more["ContinuationToken"] = page["NextContinuationToken"]

    async def put(
        self,
        key: str,
        data: Bytes | Pieces,
        *,
        metadata: Mapping[str, str] | None = None,
        if_etag: str | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> ObjectInfo:
        """See ObjectStore. After a 501, which means that the service does not support conditions, none are sent."""

        async def put(chosen: StoredAs) -> ObjectInfo:
            send = partial(self._put, key, pieces_of(data), metadata, chosen)
            return await self._conditions.put(key, if_etag, send)

        return await self._tagging.send(stored_as, put)

    async def _put(
        self,
        key: str,
        pieces: Pieces,
        metadata: Mapping[str, str] | None,
        stored_as: StoredAs,
        condition: dict[str, str],
    ) -> ObjectInfo:
        check_key(key)
        named, body = checked_metadata(metadata), body_of(pieces, signed=self._options.sign_payloads)
        parameters = self._stored(named, stored_as) | condition
        answer = await self._answered("PutObject", key, parameters, body)
        return ObjectInfo(
            key=key,
            size_bytes=len(body),
            etag=bare(answer.text),
            modified_ms=date_ms(answer.headers),
            metadata=named,
        )

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore; the first refusal is raised once all pages have been sent."""
        refused: OffloaderError | None = None
        for start in range(0, len(keys), DELETE_KEYS_MAX):
            page = keys[start : start + DELETE_KEYS_MAX]
            for key in page:
                check_key(key)
            async with self._request("DeleteObjects", page[0], write=True) as (call, client):
                answer = noted(
                    call,
                    await client.delete_objects(
                        Bucket=self._options.bucket, Delete={"Objects": [{"Key": key} for key in page], "Quiet": True}
                    ),
                )
            for error in answer.get("Errors", []):
                kind, hint = ANSWERS.verdict("DeleteObjects", error.get("Code", ""), 500)
                if not issubclass(kind, NotFound) and refused is None:
                    what = f"{error.get('Code')}: {error.get('Message')}"
                    refused = kind(f"delete {error.get('Key')} in {self._bucket_name}: {what}", hint=hint)
        if refused is not None:
            with hints_in(self.section):
                raise refused

    async def create_upload(
        self,
        key: str,
        *,
        metadata: Mapping[str, str] | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> str:
        """See MultipartStore."""
        check_key(key)
        return await self._tagging.send(stored_as, partial(self._create_upload, key, metadata))

    async def _create_upload(self, key: str, metadata: Mapping[str, str] | None, stored_as: StoredAs) -> str:
        parameters = self._stored(checked_metadata(metadata), stored_as)
        return (await self._answered("CreateMultipartUpload", key, parameters, named="UploadId")).text

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """See MultipartStore."""
        check_key(key)
        check_part_number(self.parts, part_number)
        body = body_of(pieces, signed=self._options.sign_payloads)
        parameters = {"PartNumber": part_number, "UploadId": upload_id}
        answer = await self._answered("UploadPart", key, parameters, body)
        return PartInfo(part_number=part_number, etag=bare(answer.text), size_bytes=len(body))

    async def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """See MultipartStore. SeaweedFS also lists replaced parts: the newest of each number is returned."""
        check_key(key)
        found: list[PartTypeDef] = []
        marker: Any = {}
        more = True
        while more:
            async with self._request("ListParts", key) as (call, client):
                page = noted(
                    call,
                    await client.list_parts(
                        Bucket=self._options.bucket, Key=key, UploadId=upload_id, MaxParts=self._page_keys, **marker
                    ),
                )
            found += page.get("Parts", [])
            more = page.get("IsTruncated", False)
            marker = {"PartNumberMarker": page.get("NextPartNumberMarker", 0)}
        return parts_of(found)

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """See MultipartStore; the answer does not have the object's metadata."""
        check_key(key)
        check_parts(parts)
        parameters = {"UploadId": upload_id}
        answer = await self._answered("CompleteMultipartUpload", key, parameters, named_parts(parts))
        return ObjectInfo(
            key=key,
            size_bytes=sum(part.size_bytes for part in parts),
            etag=bare(answer.text),
            modified_ms=date_ms(answer.headers),
        )

    async def made_of(self, stored: ObjectInfo, parts: Sequence[PartInfo]) -> bool | None:
        """See MultipartStore."""
        return made_of(self.parts, stored, parts)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """See MultipartStore."""
        check_key(key)
        async with self._request("AbortMultipartUpload", key, write=True) as (call, client):
            try:
                noted(
                    call, await client.abort_multipart_upload(Bucket=self._options.bucket, Key=key, UploadId=upload_id)
                )
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") != "NoSuchUpload":
                    raise

    async def list_uploads(self, prefix: str = "") -> AsyncGenerator[UploadInfo, None]:
        """See MultipartStore. All pages are read first, because SeaweedFS lists, and pages, by id alone.

        MinIO takes a prefix for a whole key, but lists all uploads of a bucket: that is the second try for a folder.
        """
        uploads: Sequence[UploadInfo] = await self._uploads(prefix)
        if not uploads and prefix.endswith("/"):
            with suppress(Denied):  # a policy allows our prefix alone, so there is nothing else to list
                uploads = [upload for upload in await self._uploads("") if upload.key.startswith(prefix)]
        for upload in sorted(uploads, key=lambda upload: (upload.key, upload.initiated_ms, upload.upload_id)):
            yield upload

    async def _uploads(self, prefix: str) -> Sequence[UploadInfo]:
        uploads: list[UploadInfo] = []
        markers: Any = {}
        more = True
        while more:
            async with self._request("ListMultipartUploads", prefix) as (call, client):
                page = noted(
                    call,
                    await client.list_multipart_uploads(
                        Bucket=self._options.bucket, Prefix=prefix, MaxUploads=self._page_keys, **markers
                    ),
                )
            uploads += uploads_of(page)
            more = page.get("IsTruncated", False)
            names = {"NextKeyMarker": "KeyMarker", "NextUploadIdMarker": "UploadIdMarker"}
            markers = {names[name]: page[name] for name in names if page.get(name)}  # type: ignore[literal-required]
        return uploads

    def _stored(self, named: Mapping[str, str], stored_as: StoredAs) -> dict[str, Any]:
        """Return the parameters of the requests that make an object, with its metadata, class and tags."""
        found = {"Metadata": named, "ContentType": _CONTENT_TYPE, **self._options.encrypting()}
        if stored_as.storage_class:
            found["StorageClass"] = stored_as.storage_class
        if stored_as.tags:
            found["Tagging"] = urlencode(stored_as.tags, quote_via=quote)
        return found

    @asynccontextmanager
    async def _request(
        self, operation: str, key: str = "", *, write: bool = False
    ) -> AsyncIterator[tuple[Call, S3Client]]:
        """Wrap one request of the client."""
        async with self._opened(operation, key, write=write) as (call, opened):
            yield call, opened.client

    @asynccontextmanager
    async def _opened(
        self, operation: str, key: str = "", *, size_bytes: int = 0, write: bool = False, sent: bool = True
    ) -> AsyncIterator[tuple[Call, Opened]]:
        """Wrap one request; its deadline includes the wait for a free connection, and a body of `size_bytes`.

        One that is not `sent` is in no metric.
        """
        where = f"{key} in {self._bucket_name}" if key else self._bucket_name
        options = self._options
        deadline_s = options.connect_timeout_s + options.read_timeout_s + size_bytes / self._bytes_per_s_min
        request = Request(operation=operation, where=where, write=write, section=options.section)
        async with (
            self._clients.one_request() as opened,
            calling(request, deadline_s, self._clock, self._metrics if sent else None, failure) as call,
        ):
            yield call, opened
