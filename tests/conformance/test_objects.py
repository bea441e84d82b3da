"""The contract of an object store, run against every adapter.

They are: memory, a directory, real S3, simulated S3, Azure in the process, and Azurite.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import aiohttp
import pytest
from yarl import URL

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Conflict, CorruptData, InvalidInput, NotFound
from offloaderd.objects import checks
from offloaderd.objects.azure.store import AzureStore
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.objects.gcs.store import GcsStore
from offloaderd.objects.port import PART_BYTES_MIN, PartInfo, SignedUrls
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.objects.stored_as import StoredAs
from offloaderd.testing.memory.objects import MemoryStore
from tests.azure.service import Service, serving
from tests.azure.service import options as azure_options
from tests.conformance.simulated import SIMULATED, simulated_world
from tests.gcs_server import gcs_server
from tests.real import stores
from tests.servers import s3_client
from tests.simulation.bucket import BucketClient
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from offloaderd.objects.port import Bytes, ObjectInfo, SegmentStore
    from tests.servers import S3Server

KEY = "prefix/0c1f4bd1-6e4f-4a0e-8c7d-2f8f2a1b3c4d"
METADATA = {"s3managedledgeroffloaderformatversion": "1", "PulsarClusterName": "a b/c"}
Opened = MemoryStore | FilesystemStore | GcsStore | S3Store | AzureStore | BucketClient
GCS_EMULATOR = "fake-gcs-server"
PART = hashlib.shake_128(b"part").digest(PART_BYTES_MIN)


@pytest.fixture(params=["memory", "filesystem", "s3", "azure", "azurite", "gcs", GCS_EMULATOR, SIMULATED])
def adapter(request: pytest.FixtureRequest) -> str:
    """The adapter under test."""
    return str(request.param)


@pytest.fixture
def options(adapter: str, request: pytest.FixtureRequest) -> ObjectsSettings | None:
    """Where the real server is, None for stores without one."""
    if adapter == GCS_EMULATOR:
        endpoint = request.getfixturevalue("gcs_emulator")
        return ObjectsSettings(kind="gcs", bucket=f"test-{SystemClock().uuid().hex}", endpoint=endpoint)
    if adapter == "azurite":
        return azure_options(request.getfixturevalue("azurite"), f"test-{SystemClock().uuid().hex[:16]}")
    if adapter != "s3":
        return None
    bucket, server = request.getfixturevalue("s3_bucket"), request.getfixturevalue("s3_server")
    return ObjectsSettings(
        bucket=bucket,
        endpoint=server.endpoint,
        access_key=server.access_key,
        secret_key=server.secret_key,
    )


@pytest.fixture
async def opened(adapter: str, options: ObjectsSettings | None, tmp_path: Path) -> AsyncIterator[Opened]:
    """An adapter over an empty bucket; S3 answers in pages of two."""
    if options is not None and options.kind == "gcs":
        async with GcsStore(options, page_keys=2) as gcs:
            await gcs.create_bucket()
            yield gcs
    elif options is not None and options.kind == "azure":
        async with AzureStore(options, page_keys=2) as azurite:
            await azurite.create_bucket()
            yield azurite
    elif options is not None:
        page_keys = 1000 if stores.wanted() == "versitygw" else 2  # it refuses its own marker
        async with S3Store(options, page_keys=page_keys) as s3:
            yield s3
    elif adapter == "gcs":
        async with gcs_server("a-bucket") as server:
            options = ObjectsSettings(kind="gcs", bucket="a-bucket", endpoint=server.endpoint)
            async with GcsStore(options, page_keys=2) as gcs:
                yield gcs
    elif adapter == "filesystem":
        async with FilesystemStore(tmp_path) as directory:
            yield directory
    elif adapter == "azure":
        async with (
            serving(Service(SystemClock())) as endpoint,
            AzureStore(azure_options(endpoint, "container"), page_keys=2) as azure,
        ):
            await azure.create_bucket()
            yield azure
    elif adapter == SIMULATED:
        with simulated_world() as world:
            yield BucketClient(world, Process(world.loop, "P"))
    else:
        yield MemoryStore(SystemClock())


@pytest.fixture
def store(opened: Opened) -> SegmentStore:
    """The same, as its users see it."""
    return opened


async def listed(store: SegmentStore, prefix: str = "") -> list[ObjectInfo]:
    """Everything that a listing yields."""
    return [info async for info in store.list(prefix)]


def other_class(adapter: str) -> str:
    """A class beside the usual one that the service knows."""
    if adapter in {"azure", "azurite"}:
        return "Cool"
    return "REDUCED_REDUNDANCY" if stores.wanted() == "minio" else "STANDARD_IA"


async def two_parts(store: SegmentStore, key: str = KEY) -> tuple[str, list[PartInfo]]:
    """An upload with a full part and a last small one."""
    upload = await store.create_upload(key, metadata=METADATA)
    last = await store.upload_part(key, upload, 2, [b"tail"])
    first = await store.upload_part(key, upload, 1, [PART])
    return upload, [first, last]


async def test_put_get_head(store: SegmentStore) -> None:
    """What was put comes back bit for bit, with its size, ETag (but with Azure an MD5) and metadata in lower case."""
    data = bytes(range(256)) * 5
    info = await store.put(KEY, data, metadata=METADATA)
    assert await store.get(KEY) == data
    head = await store.head(KEY)
    assert (head.key, head.size_bytes) == (KEY, len(data))
    assert isinstance(store, AzureStore) or head.etag == hashlib.md5(data, usedforsecurity=False).hexdigest()
    assert head.metadata == {"s3managedledgeroffloaderformatversion": "1", "pulsarclustername": "a b/c"}
    assert (info.key, info.size_bytes, info.etag, dict(info.metadata)) == (
        KEY,
        len(data),
        head.etag,
        dict(head.metadata),
    )
    assert abs(head.modified_ms - SystemClock().wall_ms()) < 60_000
    assert abs(info.modified_ms - head.modified_ms) <= 2_000


@pytest.mark.parametrize("data", [b"bytes", bytearray(b"bytes"), memoryview(b"..bytes..")[2:7]], ids=["b", "ba", "mv"])
async def test_any_bytes(store: SegmentStore, data: bytes | bytearray | memoryview) -> None:
    """Every kind of bytes is stored alike, whole and as a part."""
    await store.put(KEY, data)
    assert await store.get(KEY) == b"bytes"
    upload = await store.create_upload("parts")
    part = await store.upload_part("parts", upload, 1, [data])
    await store.complete_upload("parts", upload, [part])
    assert await store.get("parts") == b"bytes"


async def test_a_part_of_pieces(store: SegmentStore) -> None:
    """It is stored as if somebody had joined them, however long they are, and the same again when it is replaced."""
    pieces: list[Bytes] = [b"first", memoryview(os.urandom(3_000_001))[1:], b"", bytearray(b"last")]
    joined = b"".join(pieces)
    upload = await store.create_upload("parts")
    sent = [await store.upload_part("parts", upload, 1, pieces) for _ in range(2)]
    etag = hashlib.md5(joined, usedforsecurity=False).hexdigest()
    assert sent == 2 * [PartInfo(part_number=1, etag=etag, size_bytes=len(joined))]
    await store.complete_upload("parts", upload, sent[:1])
    assert await store.get("parts") == joined


VIEWS = [b"first", memoryview(os.urandom(3_000_001))[1:], b"", memoryview(bytearray(b"..last"))[2:]]
MANY = [os.urandom(size) for size in (1, 65_537, 0, *range(1, 400, 7))]


@pytest.mark.parametrize(
    "pieces", [[], [b""], [bytearray(b"one")], VIEWS, MANY], ids=["none", "empty", "one", "views", "many"]
)
async def test_a_put_of_pieces(store: SegmentStore, adapter: str, pieces: list[Bytes]) -> None:
    """It is stored as if somebody had joined them, once, with all that an object is stored with."""
    stored_as = StoredAs(other_class(adapter), {"tenant": "acme"})
    joined = b"".join(pieces)
    info = await store.put(KEY, pieces, metadata=METADATA, if_etag="", stored_as=stored_as)
    head = await store.head(KEY)
    assert (info.size_bytes, info.etag, head.size_bytes) == (len(joined), head.etag, len(joined))
    assert head.metadata.keys() == {name.lower() for name in METADATA}
    with pytest.raises(Conflict):
        await store.put(KEY, [*pieces, b"more"], if_etag="", stored_as=stored_as)
    assert await store.get(KEY) == joined
    await store.put(KEY, [b"an", b"other"], if_etag=info.etag)
    assert await store.get(KEY) == b"another"


async def test_ranges(store: SegmentStore) -> None:
    """A range is cut at the object's end, from any byte on."""
    await store.put(KEY, b"0123456789")
    assert await store.get(KEY, 0, 1) == b"0"
    assert await store.get(KEY, 3, 4) == b"3456"
    assert await store.get(KEY, 8, 100) == b"89"
    assert await store.get(KEY, 9) == b"9"
    assert await store.get(KEY, 0, 10) == b"0123456789"


@pytest.mark.parametrize(
    ("first", "lengths", "expected"),
    [
        (0, [10], [b"0123456789"]),
        (0, [1, 2, 3, 4], [b"0", b"12", b"345", b"6789"]),
        (3, [2, 1], [b"34", b"5"]),
        (8, [1, 4], [b"8", b"9"]),
        (5, [3, 2, 4, 1], [b"567", b"89", b"", b""]),
        (9, [3, 3], [b"9", b""]),
    ],
)
async def test_pieces(store: SegmentStore, first: int, lengths: list[int], expected: list[bytes]) -> None:
    """Neighbouring pieces are a range, cut; the object's end makes the last ones short."""
    await store.put(KEY, b"0123456789")
    assert list(await store.get_pieces(KEY, first, lengths)) == expected


async def test_pieces_of_a_large_object(store: SegmentStore) -> None:
    """However the bytes come off the network, each is in its piece."""
    data = os.urandom(3_000_017)
    await store.put(KEY, data)
    lengths = [1_000_000, 1, 65_536, 65_535, 700_000, 0, 1_168_900]
    pieces = await store.get_pieces(KEY, 45, lengths)
    assert [len(piece) for piece in pieces] == [*lengths[:-1], 3_000_017 - 45 - sum(lengths[:-1])]
    assert b"".join(pieces) == data[45:]


@pytest.mark.parametrize(("first", "lengths"), [(10, [1]), (-1, [5]), (0, []), (0, [0, 0])])
async def test_bad_pieces(store: SegmentStore, first: int, lengths: list[int]) -> None:
    """Pieces are refused where the range that they make up would be."""
    await store.put(KEY, b"0123456789")
    with pytest.raises(InvalidInput):
        await store.get_pieces(KEY, first, lengths)
    with pytest.raises(NotFound):
        await store.get_pieces("absent", 0, [1])


@pytest.mark.parametrize(("first", "length"), [(10, 1), (11, None), (10, None), (-1, 5), (0, 0), (2, -1)])
async def test_bad_ranges(store: SegmentStore, first: int, length: int | None) -> None:
    """A range that starts at or beyond the end, or has no bytes, is refused."""
    await store.put(KEY, b"0123456789")
    with pytest.raises(InvalidInput):
        await store.get(KEY, first, length)


async def test_empty_object(store: SegmentStore) -> None:
    """An empty object can be read whole and in no other way."""
    await store.put(KEY, b"")
    assert await store.get(KEY) == b""
    assert (await store.head(KEY)).size_bytes == 0
    with pytest.raises(InvalidInput):
        await store.get(KEY, 0, 1)


async def test_missing(store: SegmentStore) -> None:
    """What is not there is NotFound, whole, in part and by HEAD."""
    for attempt in (store.get("absent"), store.get("absent", 1, 2), store.head("absent")):
        with pytest.raises(NotFound):
            await attempt


async def test_overwrite(store: SegmentStore) -> None:
    """The second put replaces content and metadata, also when the new object is shorter."""
    await store.put(KEY, b"first and long", metadata={"a": "1"})
    await store.put(KEY, b"second", metadata={"b": "2"})
    assert await store.get(KEY) == b"second"
    assert dict((await store.head(KEY)).metadata) == {"b": "2"}
    assert len(await listed(store)) == 1


async def test_a_put_under_a_condition(store: SegmentStore) -> None:
    """It replaces what its sender knows, or nothing; else it is refused, and what is there stays."""
    first = await store.put(KEY, b"one", if_etag="")
    with pytest.raises(Conflict):
        await store.put(KEY, b"two", if_etag="")
    await store.put(KEY, b"two", if_etag=first.etag)
    with pytest.raises(Conflict):
        await store.put(KEY, b"three", if_etag=first.etag)
    with pytest.raises(Conflict):
        await store.put("absent", b"three", if_etag=first.etag)
    assert await store.get(KEY) == b"two"
    assert [info.key for info in await listed(store)] == [KEY]


@pytest.mark.parametrize("before", [b"", b"there"], ids=["none", "one"])
async def test_of_puts_under_one_condition_one_is_carried_out(store: SegmentStore, before: bytes) -> None:
    """Whoever comes second finds another object than it knows."""
    etag = (await store.put(KEY, before)).etag if before else ""
    stored: list[bytes] = []

    async def one(data: bytes) -> None:
        with suppress(Conflict):
            await store.put(KEY, data, if_etag=etag)
            stored.append(data)

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(one(b"%d" % number))
    assert stored == [await store.get(KEY)]


async def test_delete(store: SegmentStore) -> None:
    """Deleting many at once, some of them missing, is no error, and neither is doing it again."""
    for key in ("a", "b", "c"):
        await store.put(key, b"x")
    for _ in range(2):
        await store.delete(["a", "absent", "c"])
    assert [info.key for info in await listed(store)] == ["b"]
    await store.delete([])


async def test_list_order_and_pages(store: SegmentStore) -> None:
    """Listings are in key order over all pages, and only of the prefix."""
    keys = ["p/b", "p/a-index", "p/a", "q", "p/a-manifest", "p/c", "p/A"]
    for key in keys:
        await store.put(key, key.encode(), metadata={"a": "1"})
    assert [info.key for info in await listed(store)] == sorted(keys)
    found = await listed(store, "p/")
    assert [info.key for info in found] == ["p/A", "p/a", "p/a-index", "p/a-manifest", "p/b", "p/c"]
    assert [info.size_bytes for info in found] == [3, 3, 9, 12, 3, 3]
    assert [info.key for info in await listed(store, "p/a-")] == ["p/a-index", "p/a-manifest"]
    assert await listed(store, "nothing") == []
    assert all(not info.metadata for info in found)


async def test_keys_with_odd_characters(store: SegmentStore) -> None:
    """Spaces, percent signs, plus signs and letters beyond ASCII are part of a key like any other."""
    keys = ["a b", "a%2Fb", "a+b", "ä/ö", "a&b=c?d#e"]
    for key in keys:
        await store.put(key, key.encode())
    assert sorted(info.key for info in await listed(store)) == sorted(keys)
    for key in keys:
        assert await store.get(key) == key.encode()


async def test_what_is_too_large_for_a_table_is_not_read_whole(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may have put a giant in the place of an index: its size refuses it, ranges of it are read."""
    monkeypatch.setattr(checks, "WHOLE_BYTES_MAX", 1000)
    await store.put(KEY, bytes(1000))
    assert len(await store.get(KEY)) == 1000
    await store.put(KEY, bytes(1001))
    with pytest.raises(CorruptData, match="expected an index or a manifest of at most 1000 bytes, found 1001"):
        await store.get(KEY)
    assert len(await store.get(KEY, 0, 1001)) == 1001
    assert len(await store.get(KEY, 1)) == 1000


async def test_multipart(store: SegmentStore) -> None:
    """Parts that came out of order make one object, bit for bit, with the metadata of its upload."""
    upload, parts = await two_parts(store)
    with pytest.raises(NotFound):
        await store.head(KEY)
    assert list(await store.list_parts(KEY, upload)) == parts
    info = await store.complete_upload(KEY, upload, parts)
    head = await store.head(KEY)
    assert (info.size_bytes, head.size_bytes) == (PART_BYTES_MIN + 4,) * 2
    assert info.etag == head.etag
    assert head.metadata["pulsarclustername"] == "a b/c"
    assert await store.get(KEY) == PART + b"tail"
    assert await store.get(KEY, PART_BYTES_MIN - 2, 4) == PART[-2:] + b"ta"
    assert [upload async for upload in store.list_uploads()] == []


async def test_parts_at_once(store: SegmentStore) -> None:
    """Parts may be on their way side by side."""
    upload = await store.create_upload(KEY)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(store.upload_part(KEY, upload, n, [bytes([n]) + PART])) for n in (3, 1, 2)]
    parts = sorted((task.result() for task in tasks), key=lambda part: part.part_number)
    await store.complete_upload(KEY, upload, parts)
    assert await store.get(KEY) == b"".join(bytes([n]) + PART for n in (1, 2, 3))


async def test_part_again(opened: Opened, store: SegmentStore) -> None:
    """A part that is uploaded again replaces the first; the first's ETag no longer completes the upload.

    The S3 server of the tests keeps both until then and takes either: there only the object can be right.
    """
    upload = await store.create_upload(KEY)
    old = await store.upload_part(KEY, upload, 1, [b"old"])
    new = await store.upload_part(KEY, upload, 1, [b"newer"])
    listed_parts = await store.list_parts(KEY, upload)
    assert [part.part_number for part in listed_parts] == [1]
    if not isinstance(opened, S3Store):
        assert list(listed_parts) == [new]
        with pytest.raises(InvalidInput):
            await store.complete_upload(KEY, upload, [old])
    await store.complete_upload(KEY, upload, [new])
    assert await store.get(KEY) == b"newer"


async def test_list_parts_pages(store: SegmentStore) -> None:
    """All parts are listed, over several pages, in order; there may be none."""
    upload = await store.create_upload(KEY)
    assert list(await store.list_parts(KEY, upload)) == []
    parts = [await store.upload_part(KEY, upload, number, [bytes(number)]) for number in (5, 1, 4, 2, 7)]
    assert list(await store.list_parts(KEY, upload)) == sorted(parts, key=lambda part: part.part_number)


async def test_complete_with_wrong_parts(store: SegmentStore) -> None:
    """A wrong ETag, a part that was never stored, none at all and a wrong order are refused; the upload stays."""
    upload, parts = await two_parts(store)
    wrong = PartInfo(part_number=2, etag="0" * 32, size_bytes=4)
    absent = PartInfo(part_number=3, etag=parts[1].etag, size_bytes=4)
    for bad in ([parts[0], wrong], [*parts, absent], [], parts[::-1], [parts[0], parts[0]]):
        with pytest.raises(InvalidInput):
            await store.complete_upload(KEY, upload, bad)
    assert list(await store.list_parts(KEY, upload)) == parts
    await store.complete_upload(KEY, upload, parts)


async def test_small_part(store: SegmentStore) -> None:
    """A part below the store's least size that is not the last is refused when the upload is completed; others are not.

    The least size is 5 MiB with S3.
    """
    upload = await store.create_upload(KEY)
    parts = [await store.upload_part(KEY, upload, number, [b"small"]) for number in (1, 2)]
    if store.parts.bytes_min <= len(b"small"):
        await store.complete_upload(KEY, upload, parts)
        assert await store.get(KEY) == b"smallsmall"
        return
    with pytest.raises(InvalidInput):
        await store.complete_upload(KEY, upload, parts)
    with pytest.raises(NotFound):
        await store.head(KEY)


async def test_complete_twice(store: SegmentStore) -> None:
    """A second completion says NotFound, or the same again; the object stays what it was."""
    upload, parts = await two_parts(store)
    first = await store.complete_upload(KEY, upload, parts)
    try:
        again = await store.complete_upload(KEY, upload, parts)
    except NotFound:
        pass
    else:
        assert again.etag == first.etag
    assert (await store.head(KEY)).etag == first.etag


async def test_abort(store: SegmentStore) -> None:
    """An aborted upload is gone with its parts, leaves no object, and may be aborted again."""
    upload, parts = await two_parts(store)
    await store.abort_upload(KEY, upload)
    await store.abort_upload(KEY, upload)
    assert [upload async for upload in store.list_uploads()] == []
    with pytest.raises(NotFound):
        await store.list_parts(KEY, upload)
    with pytest.raises(NotFound):
        await store.complete_upload(KEY, upload, parts)
    with pytest.raises(NotFound):
        await store.upload_part(KEY, upload, 1, [b"late"])


async def test_unknown_upload(store: SegmentStore) -> None:
    """Parts of an upload that never was, or of another key's, are NotFound."""
    upload = await store.create_upload(KEY)
    outsider = "0123456789abcdef0123456789abcdef"
    for key, upload_id in ((KEY, outsider), ("other", upload)):
        with pytest.raises(NotFound):
            await store.upload_part(key, upload_id, 1, [b"x"])
        with pytest.raises(NotFound):
            await store.list_parts(key, upload_id)
    await store.abort_upload("other", outsider)


async def test_list_uploads(store: SegmentStore) -> None:
    """Open uploads are listed by key over all pages, two of one key both, and those of one key by themselves."""
    keys = ["p/b", "p/a", "q", "p/a", "p/c"]
    ids = [await store.create_upload(key) for key in keys]
    found = [upload async for upload in store.list_uploads()]
    assert [upload.key for upload in found] == sorted(keys)
    assert {upload.upload_id for upload in found} == set(ids)
    assert all(abs(upload.initiated_ms - SystemClock().wall_ms()) < 60_000 for upload in found)
    assert [upload.key async for upload in store.list_uploads("p/a")] == ["p/a", "p/a"]


async def test_uploads_below_a_prefix(store: SegmentStore) -> None:
    """What lies elsewhere is not listed."""
    for key in ("p/b", "p/a", "q"):
        await store.create_upload(key)
    assert [upload.key async for upload in store.list_uploads("p/")] == ["p/a", "p/b"]
    assert [upload.key async for upload in store.list_uploads("r/")] == []


async def test_put_during_upload(store: SegmentStore) -> None:
    """An upload does not show in the object of its key until it is completed, and then replaces it."""
    await store.put(KEY, b"before")
    upload, parts = await two_parts(store)
    assert await store.get(KEY) == b"before"
    await store.complete_upload(KEY, upload, parts)
    assert await store.get(KEY, 0, 4) == PART[:4]


async def test_class_and_tags_change_no_byte(store: SegmentStore, adapter: str) -> None:
    """An object that is stored in a class, with tags, is read as any other, put whole or in parts."""
    stored_as = StoredAs(other_class(adapter), {"tenant": "acme", "namespace": "eu west/1"})
    await store.put(KEY, b"whole", metadata=METADATA, stored_as=stored_as)
    assert await store.get(KEY) == b"whole"
    upload = await store.create_upload(KEY, metadata=METADATA, stored_as=stored_as)
    part = await store.upload_part(KEY, upload, 1, [b"part"])
    await store.complete_upload(KEY, upload, [part])
    assert await store.get(KEY) == b"part"
    assert (await store.head(KEY)).metadata.keys() == {name.lower() for name in METADATA}


@pytest.mark.parametrize("adapter", ["s3"], indirect=True)
async def test_tags_are_on_the_object(
    opened: Opened, options: ObjectsSettings | None, s3_server: S3Server, s3_bucket: str
) -> None:
    """A real server has them on what is put whole and in parts, as its own call says."""
    assert isinstance(opened, S3Store)
    stored_as = StoredAs("", {"tenant": "acme", "namespace": "eu west/1"})
    await opened.put("whole", b"whole", stored_as=stored_as)
    upload = await opened.create_upload("parts", stored_as=stored_as)
    await opened.complete_upload("parts", upload, [await opened.upload_part("parts", upload, 1, [b"part"])])
    assert opened.tags_refused == ""

    def tags(key: str) -> dict[str, str]:
        with s3_client(s3_server) as client:
            found = client.get_object_tagging(Bucket=s3_bucket, Key=key)["TagSet"]
        return {tag["Key"]: tag["Value"] for tag in found}

    assert await asyncio.to_thread(tags, "whole") == dict(stored_as.tags)
    assert await asyncio.to_thread(tags, "parts") == dict(stored_as.tags)


async def test_bad_part_number(store: SegmentStore) -> None:
    """Part numbers go from 1 to the greatest of the store, 10,000 with S3."""
    upload = await store.create_upload(KEY)
    for number in (-1, 0, store.parts.number_max + 1):
        with pytest.raises(InvalidInput):
            await store.upload_part(KEY, upload, number, [b"x"])


@pytest.mark.parametrize("key", ["", "a\x00b", "a\nb", "k" * 1025])
async def test_bad_key(store: SegmentStore, key: str) -> None:
    """A key that cannot be is refused before anything is done."""
    for attempt in (store.put(key, b"x"), store.get(key), store.head(key), store.create_upload(key)):
        with pytest.raises(InvalidInput):
            await attempt


@pytest.mark.parametrize(
    "metadata", [{"a b": "x"}, {"a": "ä"}, {"a": " x"}, {"a": "x\n"}, {"a": "x" * 2100}, {"": "x"}]
)
async def test_bad_metadata(store: SegmentStore, metadata: dict[str, str]) -> None:
    """Metadata that a header cannot carry unchanged is refused."""
    with pytest.raises(InvalidInput):
        await store.put(KEY, b"x", metadata=metadata)
    with pytest.raises(InvalidInput):
        await store.create_upload(KEY, metadata=metadata)


@pytest.mark.parametrize(
    "adapter", ["memory", "filesystem", "s3", "azure", "azurite", "gcs", GCS_EMULATOR], indirect=True
)
async def test_check(opened: Opened, store: SegmentStore) -> None:
    """The start-up probe is content with a bucket that is there, as is making it again; neither leaves an object."""
    assert not isinstance(opened, BucketClient)
    await opened.create_bucket()
    await opened.check()
    assert await listed(store) == []


async def test_a_signed_url_reads_one_object(store: SegmentStore) -> None:
    """Whoever has it needs nothing else, and gets ranges of that object alone; most kinds have none."""
    if not isinstance(store, SignedUrls):
        assert not isinstance(store, S3Store)
        return
    key = "prefix/a b+c"
    await store.put(key, b"0123456789")
    url = await store.signed_url(key, 300)
    async with aiohttp.ClientSession() as client:

        async def fetched(asked: str) -> tuple[int, bytes]:
            async with client.get(URL(asked, encoded=True), headers={"Range": "bytes=3-6"}) as answer:
                return answer.status, await answer.read()

        assert await fetched(url) == (206, b"3456")
        for other in (url.replace("/prefix/a", "/prefix/b"), url[:-1] + ("0" if url[-1] != "0" else "1"), url[:-70]):
            assert (await fetched(other))[0] in {400, 403}
    assert "X-Amz-Expires=300" in url
    assert "X-Amz-SignedHeaders=host&" in url
