"""What only the memory adapter offers: small parts, and content that nobody can change from outside; absent objects."""

from __future__ import annotations

import pytest

from offloaderd.core.errors import BucketMissing, NotFound
from offloaderd.objects.port import find, present
from offloaderd.testing.memory.objects import MemoryStore
from tests.virtual import LoopClock


async def test_small_parts() -> None:
    """The least size of a part can be lowered."""
    store = MemoryStore(LoopClock(), part_bytes_min=1)
    upload = await store.create_upload("k")
    parts = [await store.upload_part("k", upload, number, [b"x"]) for number in (1, 2)]
    await store.complete_upload("k", upload, parts)
    assert await store.get("k") == b"xx"


async def test_content_is_copied() -> None:
    """A buffer that is used again does not change what was stored from it."""
    store = MemoryStore(LoopClock())
    buffer = bytearray(b"first")
    await store.put("k", buffer)
    upload = await store.create_upload("u")
    part = await store.upload_part("u", upload, 1, [memoryview(buffer)])
    buffer[:] = b"other"
    await store.complete_upload("u", upload, [part])
    assert await store.get("k") == await store.get("u") == b"first"


async def test_ids_of_uploads() -> None:
    """Two uploads of one key are two."""
    store = MemoryStore(LoopClock())
    assert await store.create_upload("k") != await store.create_upload("k")


async def test_a_missing_bucket_is_no_missing_object() -> None:
    """Of an object in a bucket that is not there nobody can say that it is absent."""

    async def answer(error: Exception) -> bytes:
        raise error

    assert await present(answer(NotFound("no such key"))) is None
    with pytest.raises(BucketMissing):
        await present(answer(BucketMissing("no such bucket")))
    store = MemoryStore(LoopClock())
    assert await find(store, "k") is None
    await store.put("k", b"x")
    assert await find(store, "k") == await store.head("k")
