"""Simulated S3: buckets with S3's rules, and what each process sees of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.objects import keys
from offloaderd.objects.checks import cut
from offloaderd.objects.port import md5
from offloaderd.objects.stored_as import PLAIN, StoredAs
from offloaderd.testing.memory.objects import MemoryStore
from tests.real import labels
from tests.simulation.wire import Wire, drained, instantly

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from offloaderd.core.clock import Clock
    from offloaderd.objects.keys import ObjectName
    from offloaderd.objects.port import Bytes, ObjectInfo, PartInfo, Pieces, UploadInfo
    from tests.simulation.loop import Process
    from tests.simulation.world import World

PAGE = 7
"""Keys on one page of a listing."""

BUCKET, FAR = "b", "far"
PREFIXES = ("seg/", "far/seg/")
"""Where daemons store: the first is their own, and a topic's policy may name either. By its prefix a key is known to be
in one bucket or in the other one, if there is another one."""
SERVICES = {BUCKET: "s3", FAR: "far"}
"""What may be away, slow or cut off for itself."""


def label(what: str) -> str:
    """Name a request as kill points do."""
    operation, key = what.split(" ")[:2]
    return labels.of_object(operation, key, next((one for one in PREFIXES if key.startswith(one)), ""))


def parsed(name: str) -> ObjectName | None:
    """Take a key apart, whichever prefix it has; None for one that is no segment's."""
    return next((found for prefix in PREFIXES if (found := keys.parse(prefix, name)) is not None), None)


def manifest_of(name: str) -> str:
    """Return the key of the manifest beside an object of a segment, in the same place; none for no segment's."""
    return next(
        (
            keys.SegmentKeys(prefix, found.object_id, found.ledger_id).manifest
            for prefix in PREFIXES
            if (found := keys.parse(prefix, name)) is not None
        ),
        "",
    )


def places(*, apart: bool) -> tuple[tuple[str, str], ...]:
    """Return bucket and prefix of each place; `apart`: the second one has a bucket of its own."""
    return (BUCKET, PREFIXES[0]), (FAR if apart else BUCKET, PREFIXES[1])


class Buckets:
    """All buckets, as the model sees them: by key."""

    def __init__(self, clock: Clock, *, apart: bool = False, **rules: int) -> None:
        self._bucket_of = {prefix: bucket for bucket, prefix in places(apart=apart)}
        self._buckets = {bucket: Bucket(clock, **rules) for bucket in dict.fromkeys(self._bucket_of.values())}

    def at(self, bucket: str) -> Bucket:
        """Return a bucket by its name."""
        return self._buckets[bucket]

    def of(self, key: str) -> Bucket:
        """Return the bucket in which a key belongs."""
        names = (bucket for prefix, bucket in self._bucket_of.items() if key.startswith(prefix))
        return self._buckets[next(names, BUCKET)]

    def names(self) -> list[str]:
        """Return all keys."""
        return sorted(key for bucket in self._buckets.values() for key in bucket.names())

    def uploads(self) -> list[UploadInfo]:
        """Return the open uploads."""
        return [upload for bucket in self._buckets.values() for upload in bucket.uploads()]

    def deployment(self, key: str) -> str:
        """Return which deployment stored an object."""
        return self.of(key).deployment(key)

    def stored_ms(self, key: str) -> int:
        """Return when an object was stored."""
        return self.of(key).stored_ms(key)

    def age_s(self, key: str) -> float:
        """Return how long ago an object was stored."""
        return self.of(key).age_s(key)

    def data(self, key: str) -> bytes | None:
        """Return an object's bytes, None without it."""
        return self.of(key).data(key)


class Bucket(MemoryStore):
    """A bucket itself, whose state the model may look at."""

    def names(self) -> list[str]:
        """Return all keys."""
        return list(self._objects)

    def deployment(self, key: str) -> str:
        """Return which deployment stored an object."""
        return self._objects[key][0].metadata.get(keys.DEPLOYMENT_KEY, "")

    def stored_ms(self, key: str) -> int:
        """Return when an object was stored."""
        return self._objects[key][0].modified_ms

    def age_s(self, key: str) -> float:
        """Return how long ago an object was stored."""
        return (self._clock.wall_ms() - self.stored_ms(key)) / 1000

    def data(self, key: str) -> bytes | None:
        """Return an object's bytes."""
        found = self._objects.get(key)
        return found[1] if found is not None else None

    def uploads(self) -> list[UploadInfo]:
        """Return the open uploads."""
        return drained(self.list_uploads())

    def begin_upload(self, prefix: str) -> str:
        """Begin an upload of nobody's; returns its id."""
        return instantly(self.create_upload(f"{prefix}{self._clock.uuid()}"))

    def rot(self, bit: float, key: str, upload_id: str = "", part_number: int = 0) -> None:
        """Keep other bytes than were sent, without anybody noticing."""
        if not upload_id:
            info, data = self._objects[key]
            self._objects[key] = (info, _flipped(data, int(bit * 8 * len(data))))
        elif upload_id in self._uploads:
            info_of_part, data = self._uploads[upload_id].parts[part_number]
            self._uploads[upload_id].parts[part_number] = (info_of_part, _flipped(data, int(bit * 8 * len(data))))


def _flipped(data: bytes, bit: int) -> bytes:
    if not data:
        return data
    at = bit // 8
    return data[:at] + bytes([data[at] ^ (1 << bit % 8)]) + data[at + 1 :]


class BucketClient:
    """One process's SegmentStore: a bucket, and the way to the others."""

    answerable = True
    """Whether the model looks at what it aborts."""

    def __init__(self, world: World, process: Process, name: str = BUCKET) -> None:
        self._world = world
        self._process = process
        self._bucket = world.buckets.at(name)
        self._wire = Wire(world, process, "s3", label, name=SERVICES[name])
        self._rng = world.chance.stream(f"rot of {process.name}" if name == BUCKET else f"rot of {name} {process.name}")
        self._listed: dict[str, set[tuple[int, str]]] = {}
        self._begun: set[str] = set()
        self._clients = {name: self}
        self.parts = self._bucket.parts

    @property
    def begun(self) -> frozenset[str]:
        """The uploads that this process has begun."""
        return frozenset(self._begun)

    def at(self, bucket: str) -> BucketClient:
        """See SegmentStore."""
        if bucket not in self._clients:
            other = self._clients[bucket] = type(self)(self._world, self._process, bucket)
            other._listed, other._begun, other._clients = self._listed, self._begun, self._clients
        return self._clients[bucket]

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """See ObjectReader."""
        data = await self._wire.call(
            f"get {key} {first}", lambda: instantly(self._bucket.get(key, first, length)), write=False
        )
        faults = self._world.faults
        if faults.on and self._rng.random() < faults.garbled:
            faults.count("s3 garbled")
            return _flipped(data, int(self._rng.random() * 8 * len(data)))
        return data

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """See ObjectReader."""
        return cut(await self.get(key, first, sum(lengths)), lengths)

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectReader."""
        return await self._wire.call(f"head {key}", lambda: instantly(self._bucket.head(key)), write=False)

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """See ObjectReader; page by page, so that what happens in between shows by halves."""
        after = ""
        while True:
            start = after

            def page(start: str = start) -> list[ObjectInfo]:
                return [info for info in drained(self._bucket.list(prefix)) if info.key > start][:PAGE]

            found = await self._wire.call(f"list {prefix} {after}", page, write=False)
            for info in found:
                yield info
            if len(found) < PAGE:
                return
            after = found[-1].key

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
        bit = self._rots()

        def act() -> ObjectInfo:
            info = instantly(self._bucket.put(key, data, metadata=metadata, if_etag=if_etag, stored_as=stored_as))
            self._world.oracle.stored(key)
            return info

        def rot() -> ObjectInfo:
            info = instantly(self._bucket.put(key, data, metadata=metadata, if_etag=if_etag, stored_as=stored_as))
            self._bucket.rot(bit, key)
            return info

        return await self._wire.call(f"put {key}", act, write=True, spoilt=rot if bit else None)

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore."""

        def act() -> None:
            self._world.oracle.deleting(keys)
            instantly(self._bucket.delete(keys))

        await self._wire.call(f"delete {' '.join(keys)}", act, write=True)

    async def create_upload(
        self,
        key: str,
        *,
        metadata: Mapping[str, str] | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> str:
        """See MultipartStore."""
        upload_id = await self._wire.call(
            f"create_upload {key}",
            lambda: instantly(self._bucket.create_upload(key, metadata=metadata, stored_as=stored_as)),
            write=True,
        )
        self._listed[upload_id] = set()
        self._begun.add(upload_id)
        return upload_id

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """See MultipartStore."""
        bit = self._rots()
        # Metadata that went back know of no parts: who takes that up has nothing to compare.
        listed = self._listed.get(upload_id, ()) if not self._world.faults.fired["metadata restored"] else ()
        if (part_number, md5(*pieces)) in listed:
            self._world.oracle.fail("P1", f"part {part_number} of {key} was listed, and is sent again")

        def act() -> PartInfo:
            return instantly(self._bucket.upload_part(key, upload_id, part_number, pieces))

        def rot() -> PartInfo:
            info = act()
            self._bucket.rot(bit, key, upload_id, part_number)
            return info

        what = f"upload_part {key} {part_number} {sum(map(len, pieces))}"
        return await self._wire.call(what, act, write=True, spoilt=rot if bit else None)

    async def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """See MultipartStore."""
        parts = await self._wire.call(
            f"list_parts {key}", lambda: instantly(self._bucket.list_parts(key, upload_id)), write=False
        )
        self._world.oracle.kept += len(parts)
        # The listing of a take-over. A later one looks for one part; the next may be on their way already, while
        # a deposed owner stores the same.
        self._listed.setdefault(upload_id, {(part.part_number, part.etag) for part in parts})
        return parts

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """See MultipartStore."""

        def act() -> ObjectInfo:
            info = instantly(self._bucket.complete_upload(key, upload_id, parts))
            self._world.oracle.stored(key)
            return info

        return await self._wire.call(f"complete_upload {key}", act, write=True)

    async def made_of(self, stored: ObjectInfo, parts: Sequence[PartInfo]) -> bool | None:
        """See MultipartStore."""
        return await self._bucket.made_of(stored, parts)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """See MultipartStore."""

        def act() -> None:
            if self.answerable and upload_id not in self._begun:
                self._world.oracle.aborting(key, upload_id)
            instantly(self._bucket.abort_upload(key, upload_id))

        await self._wire.call(f"abort_upload {key}", act, write=True)

    async def list_uploads(self, prefix: str = "") -> AsyncGenerator[UploadInfo, None]:
        """See MultipartStore."""
        for upload in await self._wire.call(
            f"list_uploads {prefix}", lambda: drained(self._bucket.list_uploads(prefix)), write=False
        ):
            yield upload

    def _rots(self) -> float:
        """Return where what is stored now is to be kept wrongly, 0 for nowhere."""
        faults = self._world.faults
        if not (faults.on and faults.rotten) or self._rng.random() >= 0.04:
            return 0.0
        faults.count("s3 rotten")
        return self._rng.random()
