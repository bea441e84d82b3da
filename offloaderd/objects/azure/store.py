"""The object store over Azure Blob Storage, with the library's own retries turned off.

A place's bucket is a container. Parts are staged as uncommitted blocks, which survive a crash of who sent them;
`blocks.py` says how they are found again. A part is checked on its way: its MD5 is sent with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from azure.core import MatchConditions
from azure.storage.blob import BlobBlock, ContentSettings, StandardBlobTier

from offloaderd.core.aio import Group
from offloaderd.core.clock import Clock, SystemClock
from offloaderd.core.errors import (
    Archived,
    BucketMissing,
    Conflict,
    Denied,
    InvalidInput,
    NotFound,
    OffloaderError,
)
from offloaderd.objects import checks
from offloaderd.objects.azure.access import Access, account_of
from offloaderd.objects.azure.blocks import (
    Block,
    block_id,
    content_of,
    digests,
    is_upload_id,
    newest,
    parse_record,
    record_key,
    stored_as_of,
)
from offloaderd.objects.azure.errors import failure
from offloaderd.objects.buckets import Buckets
from offloaderd.objects.failures import Request
from offloaderd.objects.kinds import KINDS
from offloaderd.objects.life_cycle import LifeCycleRule, Versioning
from offloaderd.objects.port import Bytes, ObjectInfo, PartInfo, PartRules, Pieces, UploadInfo, md5, pieces_of
from offloaderd.objects.ranged import RangedGet
from offloaderd.objects.request import (
    BYTES_PER_S_MIN,
    Body,
    Call,
    RequestMetrics,
    calling,
)
from offloaderd.objects.settings import ServiceSettings
from offloaderd.objects.stored_as import PLAIN, StoredAs
from offloaderd.objects.tagging import Tagging

if TYPE_CHECKING:
    from azure.core.pipeline import PipelineResponse
    from azure.storage.blob import BlobProperties
    from azure.storage.blob.aio import ContainerClient

PAGE_KEYS = 5000
"""The service's limit on a page of a listing."""
DELETES_MAX = 32
"""Requests to delete a blob at a time."""
KNOWN_MAX = 10_000
"""Uploads that are known to be open, so that not every part asks for its upload."""

_CONTENT = ContentSettings(content_type="application/octet-stream")


Sized: TypeAlias = Sequence[tuple[str, int]]
"""Blocks by id and size in bytes."""


class _Body(Body):
    """A body that Azure's library takes for one that can be iterated; aiohttp sends it by its `write`."""

    def __aiter__(self) -> Self:
        return self


class AzureStore(Buckets):
    """Implements SegmentStore; an async context manager."""

    bucket_word = "container"
    same_access = "the account is the same"
    parts: PartRules = KINDS["azure"].parts
    has_clock = True

    def __init__(
        self,
        options: ServiceSettings,
        metrics: RequestMetrics | None = None,
        clock: Clock | None = None,
        *,
        page_keys: int = PAGE_KEYS,
        access: Access | None = None,
    ) -> None:
        """Take the container and the access to its account; other places share the account and `access`."""
        super().__init__(options.bucket, options.section)
        self._options = options
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._page_keys = page_keys
        self._access = access or Access(options, self._clock)
        self._name = f"container {options.bucket} at {account_of(options).url}"
        self._known: set[tuple[str, str]] = set()
        self._tagging = Tagging(options.bucket, self._clock)
        self._add_places(
            options, lambda there: AzureStore(there, metrics, self._clock, page_keys=page_keys, access=self._access)
        )

    async def open(self) -> None:
        """See BucketStore; the containers of an account share what the first one opens."""
        await self._access.open()

    async def close(self) -> None:
        """See BucketStore."""
        await self._access.close()

    def __str__(self) -> str:
        return self._name

    @property
    def tags_refused(self) -> str:
        """See TagsRefused."""
        return self._tagging.refused

    async def check(self) -> None:
        """Request the first name of the container. Raises BucketMissing, Denied and Transient with a remedy."""
        async with self._request("ListBlobs") as (call, container):
            await anext(container.list_blobs(results_per_page=1, **_noting(call)).by_page(), None)

    async def create_bucket(self) -> None:
        """Create the container; an existing one is no error."""
        with suppress(Conflict):
            async with self._request("CreateContainer", write=True) as (call, container):
                await container.create_container(**_noting(call))

    async def life_cycle_rules(self) -> list[LifeCycleRule]:
        """See LifeCycle: raises InvalidInput, as rules are the account's, and no right to a container shows them."""
        raise InvalidInput(
            "Azure keeps such rules with the storage account, and shows them to its managers alone",
            hint=f"see that none deletes or archives blobs below the prefix: {self._managed('management-policy')}",
        )

    async def versioning(self) -> Versioning:
        """See LifeCycle; raises as `life_cycle_rules`."""
        raise InvalidInput(
            "Azure keeps versioning and soft delete with the storage account, and shows them to its managers alone",
            hint=f"with either, deleted segments stay and are paid for: {self._managed('blob-service-properties')}",
        )

    def _managed(self, what: str) -> str:
        account, group = self._options.azure_account or "ACCOUNT", "--resource-group GROUP"
        return f"az storage account {what} show --account-name {account} {group}"

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """See ObjectReader."""
        return (await self._get(RangedGet(key, first, length)))[0]

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """See ObjectReader."""
        return await self._get(RangedGet(key, first, sum(lengths), lengths))

    async def _get(self, wanted: RangedGet) -> Sequence[bytes]:
        async with (
            self._request("GetBlob", wanted.key) as (call, _),
            await self._access.gets().send(self._options.bucket, wanted.key, wanted.text) as answer,
        ):
            if wanted.is_part and not answer.content_length:  # Azurite's answer
                raise InvalidInput(f"range from byte {wanted.first} of {wanted.key}: the object ends before")
            return await wanted.read(call, answer, BYTES_PER_S_MIN)

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectReader."""
        checks.check_key(key)
        async with self._request("GetBlobProperties", key) as (call, container):
            found = await container.get_blob_client(key).get_blob_properties(**_noting(call))
        return _described(key, found, found.metadata)

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """See ObjectReader."""
        async for found in self._blobs(prefix):
            if parse_record(found.name) is None:
                yield _described(found.name, found, {})

    async def _blobs(self, prefix: str) -> AsyncGenerator[BlobProperties, None]:
        marker = None
        while True:
            async with self._request("ListBlobs", prefix) as (call, container):
                found = container.list_blobs(prefix, results_per_page=self._page_keys, **_noting(call))
                pages = found.by_page(marker)
                page = [blob async for blob in await anext(pages)]
                marker = pages.continuation_token  # type: ignore[attr-defined] # an AsyncPageIterator
            for blob in page:
                yield blob
            if not marker:
                return

    async def put(
        self,
        key: str,
        data: Bytes | Pieces,
        *,
        metadata: Mapping[str, str] | None = None,
        if_etag: str | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> ObjectInfo:
        """See ObjectStore."""
        checks.check_key(key)
        pieces = pieces_of(data)
        digest = await asyncio.to_thread(md5, *pieces)
        send = partial(self._put, key, b"".join(pieces), digest, checks.checked_metadata(metadata), if_etag)
        return await self._tagging.send(stored_as, send)

    async def _put(
        self, key: str, body: bytes, digest: str, named: dict[str, str], if_etag: str | None, stored_as: StoredAs
    ) -> ObjectInfo:
        condition: dict[str, Any] = {"overwrite": True}
        if if_etag is not None:
            condition = {"etag": f'"{if_etag}"', "match_condition": MatchConditions.IfNotModified}
            condition = condition if if_etag else {"match_condition": MatchConditions.IfMissing}
        try:
            async with self._request("PutBlob", key, size_bytes=len(body), write=True) as (call, container):
                answer = await container.get_blob_client(key).upload_blob(
                    body,
                    length=len(body),
                    metadata=named,
                    content_settings=_CONTENT,
                    transactional_content_md5=bytearray.fromhex(digest),
                    **_parameters(stored_as),
                    **condition,
                    **_noting(call),
                )
                call.bytes_out = len(body)
        except BucketMissing:
            raise
        except NotFound as error:
            raise Conflict(f"{key} is not there any more: {error}") from error
        return _stored(key, len(body), answer, named)

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore; the first refusal is raised once all have been asked for."""
        for key in keys:
            checks.check_key(key)
        refused: list[OffloaderError] = []

        async def one(key: str) -> None:
            try:
                await self._delete(key)
            except OffloaderError as error:
                refused.append(error)

        for start in range(0, len(keys), DELETES_MAX):
            async with Group() as group:
                for key in keys[start : start + DELETES_MAX]:
                    group.create_task(one(key), name=f"delete {key}")
        if refused:
            raise refused[0]

    async def _delete(self, key: str) -> None:
        try:
            async with self._request("DeleteBlob", key, write=True) as (call, container):
                await container.get_blob_client(key).delete_blob(**_noting(call))
        except BucketMissing:
            raise
        except NotFound:
            pass

    async def create_upload(
        self, key: str, *, metadata: Mapping[str, str] | None = None, stored_as: StoredAs = PLAIN
    ) -> str:
        """See MultipartStore."""
        checks.check_key(key)
        upload_id = self._clock.uuid().hex[:16]
        await self.put(record_key(key, upload_id), content_of(stored_as), metadata=metadata)
        return upload_id

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """See MultipartStore. That the upload is open is asked once, so a part may come after its end, and is lost."""
        checks.check_key(key)
        checks.check_part_number(self.parts, part_number)
        if (key, upload_id) not in self._known:
            await self._record(key, upload_id)
        part = await asyncio.to_thread(self.parts.described, part_number, pieces)
        async with self._request("PutBlock", key, size_bytes=part.size_bytes, write=True) as (call, container):
            await container.get_blob_client(key).stage_block(
                block_id(upload_id, part, self._clock.wall_ms()),
                _Body(pieces),  # type: ignore[arg-type] # what it is for the library
                part.size_bytes,
                transactional_content_md5=bytearray.fromhex(part.etag),
                **_noting(call),
            )
            call.bytes_out = part.size_bytes
        return part

    async def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """See MultipartStore. An upload that was completed is unknown, even if its record is still there."""
        await self._record(key, upload_id)
        return [block.part for _, block in sorted((await self._blocks(key, upload_id)).items())]

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """See MultipartStore."""
        checks.check_parts(parts)
        record = await self._record(key, upload_id)
        content = await self.get(record.key) if record.size_bytes else b""
        stored_as = stored_as_of(content, key=record.key)
        try:
            found = await self._blocks(key, upload_id)
        except NotFound:
            await self.abort_upload(key, upload_id)  # only its record is left
            raise
        checks.chosen_parts(parts, {number: block.part for number, block in found.items()}, self.parts.bytes_min)

        async def commit(chosen: StoredAs) -> Mapping[str, Any]:
            async with self._request("PutBlockList", key, write=True) as (call, container):
                answer: Mapping[str, Any] = await container.get_blob_client(key).commit_block_list(
                    [BlobBlock(found[part.part_number].block_id) for part in parts],
                    metadata=dict(record.metadata),
                    content_settings=_CONTENT,
                    **_parameters(chosen),
                    **_noting(call),
                )
            return answer

        answer = await self._tagging.send(stored_as, commit)
        await self.abort_upload(key, upload_id)
        return _stored(key, sum(part.size_bytes for part in parts), answer, record.metadata)

    async def made_of(self, stored: ObjectInfo, parts: Sequence[PartInfo]) -> bool | None:
        """See MultipartStore: the service keeps the ids of the blocks that it joined."""
        committed, _ = await self._block_list(stored.key)
        found = digests(committed)
        return found == [(part.etag, part.size_bytes) for part in parts] if found else None

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """See MultipartStore. Its blocks stay for a week, as they cannot be deleted."""
        checks.check_key(key)
        self._known.discard((key, upload_id))
        if is_upload_id(upload_id):
            await self._delete(record_key(key, upload_id))

    async def list_uploads(self, prefix: str = "") -> AsyncGenerator[UploadInfo, None]:
        """See MultipartStore. Their records are found by listing all that has the prefix."""
        found = []
        async for blob in self._blobs(prefix):
            if record := parse_record(blob.name):
                key, upload_id = record
                found.append(UploadInfo(key=key, upload_id=upload_id, initiated_ms=_ms(blob.last_modified)))
        for upload in sorted(found, key=lambda upload: (upload.key, upload.initiated_ms, upload.upload_id)):
            if upload.key.startswith(prefix):
                yield upload

    async def _record(self, key: str, upload_id: str) -> ObjectInfo:
        """Return the record of an open upload. Raises NotFound."""
        checks.check_key(key)
        if not is_upload_id(upload_id):
            raise NotFound(f"no upload {upload_id} of {key}")
        found = await self.head(record_key(key, upload_id))
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known.add((key, upload_id))
        return found

    async def _blocks(self, key: str, upload_id: str) -> dict[int, Block]:
        """Return the staged blocks of an upload by part number. Raises NotFound if it was completed."""
        committed, staged = await self._block_list(key)
        if newest(upload_id, committed):
            raise NotFound(f"upload {upload_id} of {key} was completed before")
        return newest(upload_id, staged)

    async def _block_list(self, key: str) -> tuple[Sized, Sized]:
        """Return id and size in bytes of the committed and of the uncommitted blocks of a blob; none without it."""
        try:
            async with self._request("GetBlockList", key) as (call, container):
                found = await container.get_blob_client(key).get_block_list("all", **_noting(call))
        except BucketMissing:
            raise
        except NotFound:
            return [], []
        committed, staged = ([(block.id, block.size) for block in blocks] for blocks in found)
        return committed, staged

    @asynccontextmanager
    async def _request(
        self, operation: str, key: str = "", *, size_bytes: int = 0, write: bool = False
    ) -> AsyncIterator[tuple[Call, ContainerClient]]:
        """Wrap one request; its deadline includes the wait for a free connection, and a body of `size_bytes`."""
        where = f"{key} in {self._name}" if key else self._name
        options = self._options
        deadline_s = options.connect_timeout_s + options.read_timeout_s + size_bytes / BYTES_PER_S_MIN
        request = Request(operation=operation, where=where, write=write, section=options.section)
        await self._access.renew()
        container = self._access.container(options.bucket)
        try:
            async with calling(request, deadline_s, self._clock, self._metrics, failure) as call:
                yield call, container
        except Archived:
            raise  # which other credentials would not change
        except Denied:
            self._access.refused()
            raise


def _parameters(stored_as: StoredAs) -> dict[str, Any]:
    """Return class and tags as parameters of the library. Raises InvalidInput."""
    found: dict[str, Any] = {"tags": dict(stored_as.tags)} if stored_as.tags else {}
    try:
        return found | ({"standard_blob_tier": StandardBlobTier(name)} if (name := stored_as.storage_class) else {})
    except ValueError as error:
        raise InvalidInput(f"{error}", hint="set objects.storage_class or the policy to an access tier") from error


def _noting(call: Call) -> dict[str, Any]:
    """Return the library's parameter that has the status of the answer noted."""
    return {"raw_response_hook": lambda response: _note(call, response)}


def _note(call: Call, response: PipelineResponse[Any, Any]) -> None:
    call.status = str(response.http_response.status_code)


def _ms(moment: Any) -> int:  # noqa: ANN401 - a datetime, untyped there
    return int(moment.timestamp() * 1000)


def _described(key: str, found: BlobProperties, metadata: Mapping[str, str] | None) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size_bytes=found.size,
        etag=found.etag.strip('"'),
        modified_ms=_ms(found.last_modified),
        metadata={name.lower(): value for name, value in (metadata or {}).items()},
    )


def _stored(key: str, size_bytes: int, answer: Mapping[str, Any], metadata: Mapping[str, str]) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size_bytes=size_bytes,
        etag=answer["etag"].strip('"'),
        modified_ms=_ms(answer["last_modified"]),
        metadata=metadata,
    )
