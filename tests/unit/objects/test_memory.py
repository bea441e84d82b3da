"""What only the memory adapter offers: small parts, and content that nobody can change from outside."""

from __future__ import annotations

from offloaderd.core.clock import SystemClock
from offloaderd.testing.memory.objects import MemoryStore


async def test_small_parts() -> None:
    """The least size of a part can be lowered."""
    store = MemoryStore(SystemClock(), part_bytes_min=1)
    upload = await store.create_upload("k")
    parts = [await store.upload_part("k", upload, number, [b"x"]) for number in (1, 2)]
    await store.complete_upload("k", upload, parts)
    assert await store.get("k") == b"xx"


async def test_content_is_copied() -> None:
    """A buffer that is used again does not change what was stored from it."""
    store = MemoryStore(SystemClock())
    buffer = bytearray(b"first")
    await store.put("k", buffer)
    upload = await store.create_upload("u")
    part = await store.upload_part("u", upload, 1, [memoryview(buffer)])
    buffer[:] = b"other"
    await store.complete_upload("u", upload, [part])
    assert await store.get("k") == await store.get("u") == b"first"


async def test_ids_of_uploads() -> None:
    """Two uploads of one key are two."""
    store = MemoryStore(SystemClock())
    assert await store.create_upload("k") != await store.create_upload("k")
