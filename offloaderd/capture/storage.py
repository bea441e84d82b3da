"""Captures in the bucket: one object each, whose key begins with its time, so that a listing shows them in order."""

import re
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime

from offloaderd.capture.records import Capture, decode, encode
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, CorruptData, InvalidInput, NotFound, OutcomeUnknown, Transient
from offloaderd.objects import keys
from offloaderd.objects.port import ObjectReader, ObjectStore
from offloaderd.upkeep.stored import Site

TRIES = 5
NEWEST = "newest"
_TIME = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"(?P<time>[0-9]{8}T[0-9]{6}Z)-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCapture:
    """A capture in the bucket. `taken_ms` has whole seconds."""

    name: str
    key: str
    taken_ms: int
    size_bytes: int


async def stored_captures(objects: ObjectReader, site: Site) -> list[StoredCapture]:
    """Return all captures of a place, the newest first. Raises as the store does."""
    folder = keys.captures(site.prefix, site.cluster)
    found = []
    async with aclosing(objects.at(site.bucket).list(folder)) as listed:
        async for info in listed:
            name = info.key.removeprefix(folder).removesuffix(keys.CAPTURE_END)
            if (match := _NAME.fullmatch(name)) is not None and info.key == f"{folder}{name}{keys.CAPTURE_END}":
                taken = datetime.strptime(match["time"], _TIME).replace(tzinfo=UTC)
                taken_ms = int(taken.timestamp()) * 1000
                found.append(StoredCapture(name=name, key=info.key, taken_ms=taken_ms, size_bytes=info.size_bytes))
    return sorted(found, key=lambda one: one.name, reverse=True)


async def read(objects: ObjectReader, site: Site, name: str = NEWEST) -> tuple[StoredCapture, Capture]:
    """Return a capture. Raises NotFound for none of that name, CorruptData, and as the store does."""
    found = await stored_captures(objects, site)
    one = next((one for one in found if name in {NEWEST, one.name}), None)
    if one is None:
        what = "no capture" if name == NEWEST else f"no capture {name}"
        place = f"s3://{site.bucket}/{keys.captures(site.prefix, site.cluster)}".removeprefix("s3://")
        raise NotFound(f"{what} in {place}", hint="offloadctl metadata list shows those there are")
    capture = decode(await objects.at(site.bucket).get(one.key), key=one.key)
    if capture.cluster != site.cluster:
        raise CorruptData(key=one.key, offset=0, expected=f"a capture of {site.cluster!r}", found=capture.cluster)
    return one, capture


async def write(objects: ObjectStore, site: Site, capture: Capture, clock: Clock) -> StoredCapture:
    """Store a capture under a name of its own. Raises Transient, Denied, NoSpace."""
    time = datetime.fromtimestamp(capture.taken_ms / 1000, UTC).strftime(_TIME)
    name = f"{time}-{clock.uuid().hex[:8]}"
    key, data = f"{keys.captures(site.prefix, site.cluster)}{name}{keys.CAPTURE_END}", encode(capture)
    store = objects.at(site.bucket)
    for _ in range(TRIES):
        try:
            await store.put(key, data, if_etag="")
        except OutcomeUnknown:
            continue
        except Conflict:
            if await store.get(key) != data:  # else an earlier try has stored it
                raise
        return StoredCapture(name=name, key=key, taken_ms=capture.taken_ms // 1000 * 1000, size_bytes=len(data))
    raise Transient(f"the outcome of storing {key} stays unknown")


async def prune(objects: ObjectStore, site: Site, keep: int) -> Sequence[StoredCapture]:
    """Delete all captures but the newest `keep`; return those. Raises as the store does."""
    if keep < 1:
        raise InvalidInput(f"at least one capture has to stay, not {keep}")
    gone = (await stored_captures(objects, site))[keep:]
    if gone:
        await objects.at(site.bucket).delete([one.key for one in gone])
    return gone
