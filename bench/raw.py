"""The reference: the same bytes moved by aiobotocore alone, in a process of its own, with the daemon's client options.

`python -m bench.raw` reads a task as JSON from standard input and prints what it took. `measure` runs it as a child.
Making the bytes, starting the client and its first connection are not measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, TypedDict

from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
from aiobotocore.session import AioSession  # type: ignore[import-untyped]

from bench.child import Took, in_child, used_s
from offloaderd.clock import SystemClock

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client

    from offloaderd.objects.s3 import S3Options

CLOCK = SystemClock()
MIB = 1024 * 1024


class Task(TypedDict):
    """What to do: upload objects of these sizes under these keys, or get those keys in ranges."""

    what: str
    endpoint: str
    access_key: str
    secret_key: str
    bucket: str
    objects: dict[str, int]
    request_bytes: int
    parallel: int


async def measure(what: str, s3: S3Options, objects: dict[str, int], *, request_bytes: int, parallel: int) -> Took:
    """Run a task in a process of its own."""
    task = Task(
        what=what,
        endpoint=s3.endpoint or "",
        access_key=s3.access_key or "",
        secret_key=s3.secret_key or "",
        bucket=s3.bucket,
        objects=objects,
        request_bytes=request_bytes,
        parallel=parallel,
    )
    return await in_child("bench.raw", task)


async def run(task: Task) -> Took:
    """Do the task."""
    config = AioConfig(
        s3={"addressing_style": "path", "payload_signing_enabled": False},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=32,
        parameter_validation=False,
    )
    client: S3Client
    async with AioSession().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=task["endpoint"],
        aws_access_key_id=task["access_key"],
        aws_secret_access_key=task["secret_key"],
        config=config,
    ) as client:
        await client.list_objects_v2(Bucket=task["bucket"], MaxKeys=1)
        content = os.urandom(task["request_bytes"]) if task["what"] == "upload" else b""
        before = used_s()
        started = CLOCK.monotonic()
        for key, size in task["objects"].items():
            if task["what"] == "upload":
                await upload(client, task, key, size, content)
            else:
                await download(client, task, key, size)
        return Took(CLOCK.monotonic() - started, used_s() - before)


async def upload(client: S3Client, task: Task, key: str, size: int, content: bytes) -> None:
    """Upload one object in parts, some side by side."""
    bucket = task["bucket"]
    upload_id = (await client.create_multipart_upload(Bucket=bucket, Key=key))["UploadId"]
    slots = asyncio.Semaphore(task["parallel"])
    etags: dict[int, str] = {}

    async def part(number: int, data: bytes) -> None:
        async with slots:
            answer = await client.upload_part(Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=data)
            etags[number] = answer["ETag"]

    async with asyncio.TaskGroup() as group:
        for number, at in enumerate(range(0, size, len(content)), start=1):
            group.create_task(part(number, content[: size - at]))
    await client.complete_multipart_upload(
        Bucket=bucket,
        Key=key,
        UploadId=upload_id,
        MultipartUpload={"Parts": [{"PartNumber": number, "ETag": etags[number]} for number in sorted(etags)]},
    )


async def download(client: S3Client, task: Task, key: str, size: int) -> None:
    """Get one object range by range, some side by side, and drop the bytes."""
    slots = asyncio.Semaphore(task["parallel"])

    async def get(first: int) -> None:
        async with slots:
            last = min(first + task["request_bytes"], size) - 1
            answer = await client.get_object(Bucket=task["bucket"], Key=key, Range=f"bytes={first}-{last}")
            async with answer["Body"] as body:
                if len(await body.read()) != last - first + 1:
                    raise RuntimeError(f"{key}: fewer bytes than asked for")

    async with asyncio.TaskGroup() as group:
        for first in range(0, size, task["request_bytes"]):
            group.create_task(get(first))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(json.load(sys.stdin)))))
