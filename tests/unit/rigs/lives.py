"""Owners that come and go: an engine that is killed between two calls of its stores, and what it had sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from offloaderd.core.errors import NotFound
from offloaderd.fleet.engine import Engine
from offloaderd.format import manifest_bytes
from offloaderd.metadata import paths
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records.ownership import DaemonNode
from offloaderd.objects.port import md5, pieces_of
from offloaderd.segment.complete import without_chunks
from offloaderd.testing.faults import FaultyMetadata, FaultyStore
from offloaderd.testing.memory.objects import MemoryStore
from tests.patience import PATIENCE_S
from tests.unit.rigs.rig import TOPIC, Rig, beside, offloader_of, payloads, turn, until_offloaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from offloaderd.metadata.records.attempt import Attempt
    from offloaderd.objects.port import Bytes, ObjectInfo, PartInfo, Pieces
    from offloaderd.testing.faults import Plan


class CountingStore(MemoryStore):
    """A bucket that counts how often each part was sent, and remembers what else was written."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.clock, part_bytes_min=1)
        self.sent: Counter[tuple[str, int]] = Counter()
        self.puts: dict[str, set[bytes]] = {}

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """Count, and store."""
        info = await super().upload_part(key, upload_id, part_number, pieces)
        self.sent[key, part_number] += 1
        return info

    async def put(self, key: str, data: Bytes | Pieces, **rest: object) -> ObjectInfo:
        """Remember, and store."""
        if not beside(key):
            self.puts.setdefault(key, set()).add(b"".join(pieces_of(data)))
        return await super().put(key, data, **rest)  # type: ignore[arg-type]

    @property
    def told_alike(self) -> bool:
        """Whether all that was put under a key says the same; who has not cut a block does not know its chunks."""
        return all(len({_said(key, data) for data in versions}) == 1 for key, versions in self.puts.items())

    @property
    def sent_again(self) -> int:
        """How many parts were sent more than once."""
        return sum(times - 1 for times in self.sent.values())


class EncryptingStore(CountingStore):
    """One that encrypts with a key: its ETags look like MD5s and are none, and HEAD says how it encrypts."""

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """Store it under an ETag of its own."""
        info = await super().upload_part(key, upload_id, part_number, pieces)
        info = replace(info, etag=md5(b"key", info.etag.encode()))
        self._uploads[upload_id].parts[part_number] = (info, b"".join(pieces))
        return info

    async def head(self, key: str) -> ObjectInfo:
        """Say that the ETag tells nothing."""
        info = await super().head(key)
        tag = md5(b"key", info.etag.encode())
        return replace(info, etag=info.etag.replace(info.etag[:32], tag), etag_opaque=True)


def _said(key: str, data: bytes) -> object:
    return without_chunks(manifest_bytes.decode(data, key=key)) if key.endswith("-manifest") else data


class Life:
    """One life of a daemon."""

    def __init__(self, rig: Rig, name: str, plan: Plan | None = None, *, push_only: bool = False) -> None:
        self._rig = rig
        self._session = rig.tree.connect()
        self.dead = False
        rig_objects = rig.objects
        metadata = FaultyMetadata(self._session, plan or self._gone)
        rig.objects = FaultyStore(rig.store, plan or self._gone)
        try:
            context = rig.context(metadata, source=None if push_only else rig.ledgers)
        finally:
            rig.objects = rig_objects
        self.engine = Engine(context, rig.book(context.metadata))
        self._node = DaemonNode(daemon_id=name, address=f"{name}:1", version="0", started_ms=1)

    def _gone(self, operation: str, key: str, when: str) -> Exception | None:
        return asyncio.CancelledError() if self.dead else None  # type: ignore[return-value]

    async def run(self) -> None:
        """Work until killed."""
        with suppress(asyncio.CancelledError):
            await self.engine.run(self._node)

    async def kill(self, task: asyncio.Task[None]) -> None:
        """End it as SIGKILL does: nothing more reaches a store, and its session expires."""
        self.dead = True
        task.cancel()
        await asyncio.wait([task])
        self._session.expire()


@asynccontextmanager
async def life(rig: Rig, name: str, plan: Plan | None = None, *, push_only: bool = False) -> AsyncIterator[Life]:
    """Run a daemon that is killed at the end."""
    one = Life(rig, name, plan, push_only=push_only)
    task = asyncio.ensure_future(one.run())  # noqa: TID251 - it is to die alone
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield one
    finally:
        await one.kill(task)


def recorded(rig: Rig, path: str = paths.attempt(TOPIC)) -> Attempt | None:
    """Return the attempt as it is recorded."""
    try:
        return attempt_record.decode(rig.tree.node(path).value, path=path)
    except NotFound:
        return None


async def until_recorded(rig: Rig, condition: Callable[[Attempt], bool], path: str = paths.attempt(TOPIC)) -> Attempt:
    """Wait until the recorded attempt is as wanted."""
    changed = asyncio.Event()
    watcher = rig.tree.watch(path, changed.set)
    try:
        while (found := recorded(rig, path)) is None or not condition(found):
            await changed.wait()
            changed.clear()
    finally:
        rig.tree.unwatch(watcher)
    return found


async def committed(rig: Rig, entries: int) -> None:
    """Have the next owner commit everything; checks it, and that nothing else is left."""
    async with rig.engine("last") as engine:
        topic = await offloader_of(engine)
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)
        while await rig.tree.connect().children(paths.trash(TOPIC)):
            await turn()
    assert [payload for _, payload in await rig.committed()] == payloads(entries)
    assert await rig.leftovers() == []
    assert list(await rig.tree.connect().children(paths.trash(TOPIC))) == []
    assert recorded(rig) is None
