"""The S3 adapter, on aiobotocore; works with any server that supports S3's multipart protocol.

Each call makes one attempt, as the engine retries (only aiohttp repeats a GET, HEAD, PUT or DELETE once if its
connection breaks, as the server may have dropped a pooled one). Every request has a deadline that grows with its size.
A body is sent from the caller's memory without a copy, and is hashed only without TLS (`sign_payloads`). `errors.py`
translates the errors of the libraries.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
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
from offloaderd.objects.port import S3_PARTS, Bytes, ObjectInfo, PartInfo, PartRules, Pieces, UploadInfo
from offloaderd.objects.ranged import RangedGet
from offloaderd.objects.request import (
    BYTES_PER_S_MIN,
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

    async def _get(self, wanted: RangedGet) -> Sequence[bytes]:
        try:
            return await self._get_once(wanted)
        except OffloaderError as error:
            if not is_elsewhere(error.__cause__):
                raise
        await self.check()  # by which botocore learns of the bucket's region
        return await self._get_once(wanted)

    async def _get_once(self, wanted: RangedGet) -> Sequence[bytes]:
        async with (
            self._opened("GetObject", wanted.key) as (call, opened),
            await opened.gets.send(wanted.key, wanted.headers) as answer,
        ):
            return await wanted.read(call, answer, self._bytes_per_s_min)

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectReader. After a 404 a second request checks the bucket, as HEAD does not say what is missing."""
        check_key(key)
        try:
            async with self._request("HeadObject", key) as (call, client):
                answer = noted(call, await client.head_object(Bucket=self._options.bucket, Key=key))
        except NotFound:
            await self.check()
            raise
        return described(key, answer)

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
        data: Bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        if_etag: str | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> ObjectInfo:
        """See ObjectStore. After a 501, which means that the service does not support conditions, none are sent."""

        async def put(chosen: StoredAs) -> ObjectInfo:
            send = partial(self._put, key, data, metadata, _parameters(chosen))
            return await self._conditions.put(key, if_etag, send)

        return await self._tagging.send(stored_as, put)

    async def _put(
        self,
        key: str,
        data: Bytes,
        metadata: Mapping[str, str] | None,
        stored_as: Any,  # noqa: ANN401
        condition: Any,  # noqa: ANN401
    ) -> ObjectInfo:
        check_key(key)
        named, body = checked_metadata(metadata), body_of([data], signed=self._options.sign_payloads)
        async with self._request("PutObject", key, size_bytes=len(body), write=True) as (call, client):
            answer = noted(
                call,
                await client.put_object(
                    Bucket=self._options.bucket,
                    Key=key,
                    Body=body,
                    Metadata=named,
                    ContentType=_CONTENT_TYPE,
                    **self._options.encrypting(),
                    **stored_as,
                    **condition,
                ),
            )
            call.bytes_out = len(body)
        return ObjectInfo(
            key=key,
            size_bytes=len(body),
            etag=bare(answer["ETag"]),
            modified_ms=date_ms(answer["ResponseMetadata"]["HTTPHeaders"]),
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
        named = checked_metadata(metadata)
        async with self._request("CreateMultipartUpload", key, write=True) as (call, client):
            answer = noted(
                call,
                await client.create_multipart_upload(
                    Bucket=self._options.bucket,
                    Key=key,
                    Metadata=named,
                    ContentType=_CONTENT_TYPE,
                    **self._options.encrypting(),
                    **_parameters(stored_as),
                ),
            )
        return answer["UploadId"]

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """See MultipartStore."""
        check_key(key)
        check_part_number(self.parts, part_number)
        body = body_of(pieces, signed=self._options.sign_payloads)
        async with self._request("UploadPart", key, size_bytes=len(body), write=True) as (call, client):
            answer = noted(
                call,
                await client.upload_part(
                    Bucket=self._options.bucket, Key=key, UploadId=upload_id, PartNumber=part_number, Body=body
                ),
            )
            call.bytes_out = len(body)
        return PartInfo(part_number=part_number, etag=bare(answer["ETag"]), size_bytes=len(body))

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
        async with self._request("CompleteMultipartUpload", key, write=True) as (call, client):
            answer = noted(
                call,
                await client.complete_multipart_upload(
                    Bucket=self._options.bucket,
                    Key=key,
                    UploadId=upload_id,
                    MultipartUpload={
                        "Parts": [{"PartNumber": part.part_number, "ETag": f'"{part.etag}"'} for part in parts]
                    },
                ),
            )
        return ObjectInfo(
            key=key,
            size_bytes=sum(part.size_bytes for part in parts),
            etag=bare(answer["ETag"]),
            modified_ms=date_ms(answer["ResponseMetadata"]["HTTPHeaders"]),
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

    @asynccontextmanager
    async def _request(
        self, operation: str, key: str = "", *, size_bytes: int = 0, write: bool = False
    ) -> AsyncIterator[tuple[Call, S3Client]]:
        """Wrap one request of the client."""
        async with self._opened(operation, key, size_bytes=size_bytes, write=write) as (call, opened):
            yield call, opened.client

    @asynccontextmanager
    async def _opened(
        self, operation: str, key: str = "", *, size_bytes: int = 0, write: bool = False
    ) -> AsyncIterator[tuple[Call, Opened]]:
        """Wrap one request; its deadline includes the wait for a free connection, and a body of `size_bytes`."""
        where = f"{key} in {self._bucket_name}" if key else self._bucket_name
        options = self._options
        deadline_s = options.connect_timeout_s + options.read_timeout_s + size_bytes / self._bytes_per_s_min
        request = Request(operation=operation, where=where, write=write, section=options.section)
        async with (
            self._clients.one_request() as opened,
            calling(request, deadline_s, self._clock, self._metrics, failure) as call,
        ):
            yield call, opened


def _parameters(stored_as: StoredAs) -> Any:  # noqa: ANN401 - parameters of the library, which types each
    """Return class and tags as parameters of S3's requests."""
    found = {"StorageClass": stored_as.storage_class} if stored_as.storage_class else {}
    return found | ({"Tagging": urlencode(stored_as.tags, quote_via=quote)} if stored_as.tags else {})
