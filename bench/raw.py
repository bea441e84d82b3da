"""The limits: the same bytes moved by a bare client, in a process of its own. Two clients of S3, measured apart.

What is uploaded are copies of objects that the daemon has stored, cut into the same parts: a server may look at what
it gets (SeaweedFS tries to compress what begins like the header of a block).

`aiobotocore` with the daemon's options is the client that the daemon uses, by whole calls; `obstore` (Rust's
object_store) is the fastest one for Python, and tells what another client could bring. Azure's own library and plain
HTTP requests (aiohttp) to Google are the clients of those services. `python -m bench.raw` reads a task as JSON from
standard input and prints what it took; `measure` runs it as a child. Getting the bytes to upload, starting the client
and its first connection are not measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict
from urllib.parse import quote

import aiohttp
import obstore
from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
from aiobotocore.session import AioSession  # type: ignore[import-untyped]
from azure.storage.blob.aio import ContainerClient
from obstore.store import S3Store as RustStore
from yarl import URL

from bench.child import Took, in_child, peak_bytes, used_s
from bench.site import secret_of
from offloaderd.core.clock import SystemClock
from offloaderd.format.v2 import BLOCK_HEADER_BYTES, decode_header

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from types_aiobotocore_s3 import S3Client
    from typing_extensions import Buffer

    from offloaderd.objects.settings import ObjectsSettings

CLOCK = SystemClock()
What = Literal["upload", "get"]
ClientName = Literal["aiobotocore", "obstore", "azure", "google"]


class Task(TypedDict):
    """The work: upload copies of objects with these keys and sizes, or get them in ranges."""

    what: What
    client: ClientName
    endpoint: str
    access_key: str
    """With Azure, the account."""
    secret_key: str
    bucket: str
    objects: dict[str, int]
    request_bytes: int
    """Of a range; a part is as many blocks as have so many bytes together."""
    parallel: int
    """Parts or ranges of one object at a time."""
    together: int
    """Objects at a time."""


async def measure(
    what: What,
    s3: ObjectsSettings,
    objects: dict[str, int],
    *,
    client: ClientName = "aiobotocore",
    request_bytes: int,
    parallel: int,
    together: int = 1,
) -> Took:
    """Run a task in a process of its own."""
    task = Task(
        what=what,
        client=client,
        endpoint=s3.endpoint or "",
        access_key=s3.access_key or s3.azure_account or "",
        secret_key=secret_of(s3),
        bucket=s3.bucket,
        objects=objects,
        request_bytes=request_bytes,
        parallel=parallel,
        together=together,
    )
    return await in_child("bench.raw", task)


class Bare(Protocol):
    """A client that is nothing else."""

    async def upload(self, key: str, parts: Sequence[memoryview]) -> None:
        """Upload one object in these parts, all of one content, some side by side."""

    async def get(self, key: str, first: int, length: int) -> Buffer:
        """Get a range."""
        ...


class Aiobotocore:
    """The daemon's client."""

    def __init__(self, client: S3Client, task: Task) -> None:
        self._client = client
        self._task = task

    async def upload(self, key: str, parts: Sequence[memoryview]) -> None:
        """Upload one object."""
        client, bucket = self._client, self._task["bucket"]
        upload_id = (await client.create_multipart_upload(Bucket=bucket, Key=key))["UploadId"]
        slots = asyncio.Semaphore(self._task["parallel"])
        etags: dict[int, str] = {}

        async def part(number: int, body: memoryview) -> None:
            async with slots:
                answer = await client.upload_part(
                    Bucket=bucket,
                    Key=key,
                    UploadId=upload_id,
                    PartNumber=number,
                    Body=body,  # anything with a length and a buffer is sent as it is
                )
                etags[number] = answer["ETag"]

        async with asyncio.TaskGroup() as group:
            for number, body in enumerate(parts, start=1):
                group.create_task(part(number, body))
        await client.complete_multipart_upload(
            Bucket=bucket,
            Key=key,
            UploadId=upload_id,
            MultipartUpload={"Parts": [{"PartNumber": number, "ETag": etags[number]} for number in sorted(etags)]},
        )

    async def get(self, key: str, first: int, length: int) -> Buffer:
        """Get a range."""
        said = f"bytes={first}-{first + length - 1}"
        answer = await self._client.get_object(Bucket=self._task["bucket"], Key=key, Range=said)
        async with answer["Body"] as body:
            content: bytes = await body.read()
        return content


class Obstore:
    """The second limit."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._store = RustStore(
            task["bucket"],
            endpoint=task["endpoint"],
            access_key_id=task["access_key"],
            secret_access_key=task["secret_key"],
            region="us-east-1",
            virtual_hosted_style_request=False,
            unsigned_payload=True,
            client_options={"allow_http": True},
        )

    async def upload(self, key: str, parts: Sequence[memoryview]) -> None:
        """Upload one object; all its parts are as long as the first."""
        await obstore.put_async(
            self._store,
            key,
            parts[0].obj,
            use_multipart=True,
            chunk_size=len(parts[0]),
            max_concurrency=self._task["parallel"],
        )

    async def get(self, key: str, first: int, length: int) -> Buffer:
        """Get a range."""
        return await obstore.get_range_async(self._store, key, start=first, length=length)


class Azure:
    """Azure's library, by the calls that its users make."""

    def __init__(self, container: ContainerClient, task: Task) -> None:
        self._container = container
        self._parallel = task["parallel"]

    async def upload(self, key: str, parts: Sequence[memoryview]) -> None:
        """Upload one object; the client cuts it into blocks as long as `opened` says."""
        whole = bytes(parts[0].obj)
        await self._container.upload_blob(key, whole, max_concurrency=self._parallel)

    async def get(self, key: str, first: int, length: int) -> Buffer:
        """Get a range."""
        return await (await self._container.download_blob(key, offset=first, length=length)).readall()


class Google:
    """Requests of Google's JSON API, as it has no asynchronous library: each part an object, which are composed."""

    def __init__(self, session: aiohttp.ClientSession, task: Task) -> None:
        self._session = session
        self._bucket = task["bucket"]
        self._parallel = task["parallel"]

    async def upload(self, key: str, parts: Sequence[memoryview]) -> None:
        """Upload one object, of 32 parts at most."""
        slots, names = asyncio.Semaphore(self._parallel), [f"{key}-{number:05}" for number in range(len(parts))]

        async def part(name: str, body: memoryview) -> None:
            said = {"uploadType": "media", "name": name}
            async with slots, self._session.post(f"/upload/storage/v1/b/{self._bucket}/o", params=said, data=body):
                pass

        async with asyncio.TaskGroup() as group:
            for name, body in zip(names, parts, strict=True):
                group.create_task(part(name, body))
        composed = {"sourceObjects": [{"name": name} for name in names]}
        async with self._session.post(self._path(key) / "compose", json=composed):
            pass

    async def get(self, key: str, first: int, length: int) -> Buffer:
        """Get a range."""
        said = {"Range": f"bytes={first}-{first + length - 1}"}
        async with self._session.get(self._path(key), params={"alt": "media"}, headers=said) as answer:
            return await answer.read()

    def _path(self, key: str) -> URL:
        return URL(f"/storage/v1/b/{self._bucket}/o/{quote(key, safe='')}", encoded=True)


@asynccontextmanager
async def opened(task: Task) -> AsyncIterator[Bare]:
    """Give the client, with its first request behind it."""
    if task["client"] == "obstore":
        client = Obstore(task)
        await client.get("warm", 0, 1)
        yield client
        return
    if task["client"] == "google":
        async with aiohttp.ClientSession(task["endpoint"], raise_for_status=True) as session:
            google = Google(session, task)
            await google.get("warm", 0, 1)
            yield google
        return
    if task["client"] == "azure":
        at_once = task["request_bytes"]
        async with ContainerClient(
            f"{task['endpoint']}/{task['access_key']}",
            task["bucket"],
            {"account_name": task["access_key"], "account_key": task["secret_key"]},
            max_block_size=at_once,
            max_single_put_size=at_once,
            max_single_get_size=at_once,
        ) as container:
            azure = Azure(container, task)
            await azure.get("warm", 0, 1)
            yield azure
        return
    config = AioConfig(
        s3={"addressing_style": "path", "payload_signing_enabled": False},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=32,
        parameter_validation=False,
    )
    made: S3Client
    async with AioSession().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=task["endpoint"],
        aws_access_key_id=task["access_key"],
        aws_secret_access_key=task["secret_key"],
        config=config,
    ) as made:
        await made.list_objects_v2(Bucket=task["bucket"], MaxKeys=1)
        yield Aiobotocore(made, task)


async def run(task: Task) -> Took:
    """Do the task."""
    together = asyncio.Semaphore(task["together"])
    async with opened(task) as client:
        uploaded = task["objects"] if task["what"] == "upload" else {}
        uploads = {key: parts_of(await client.get(key, 0, size), task) for key, size in uploaded.items()}

        async def one(key: str) -> None:
            async with together:
                if key in uploads:
                    await client.upload(f"{task['client']}-{key}", uploads[key])
                else:
                    await download(client, task, key)

        before, started = used_s(), CLOCK.monotonic()
        async with asyncio.TaskGroup() as group:
            for key in task["objects"]:
                group.create_task(one(key))
        return Took(CLOCK.monotonic() - started, used_s() - before, peak_bytes())


def parts_of(content: Buffer, task: Task) -> list[memoryview]:
    """Cut an object where its blocks end, as the daemon does."""
    data, parts, begin, at = memoryview(content), list[memoryview](), 0, 0
    while at < len(data):
        at += decode_header(data[at : at + BLOCK_HEADER_BYTES], key="", at=at).block_bytes
        if at - begin >= task["request_bytes"] or at == len(data):
            parts.append(data[begin:at])
            begin = at
    return parts


async def download(client: Bare, task: Task, key: str) -> None:
    """Get one object range by range, some side by side."""
    slots, size, at_once = asyncio.Semaphore(task["parallel"]), task["objects"][key], task["request_bytes"]

    async def get(first: int) -> None:
        async with slots:
            length = min(at_once, size - first)
            if len(memoryview(await client.get(key, first, length))) != length:
                raise RuntimeError(f"{key}: fewer bytes than asked for")

    async with asyncio.TaskGroup() as group:
        for first in range(0, size, at_once):
            group.create_task(get(first))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(json.load(sys.stdin)))), flush=True)
    os._exit(
        0
    )  # obstore's threads let go of Python's objects when they like: an interpreter that ends meanwhile aborts
