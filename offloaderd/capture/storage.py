"""Captures in the bucket: one object each, whose name is its time and its deployment.

A daemon that started over empty metadata captures that it has nothing. So the captures of each deployment are counted
for themselves, and the newest one is that of the deployment to which the place belongs.
"""

import asyncio
import re
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from offloaderd.capture.records import Capture, decode, encode
from offloaderd.core.errors import Archived, Conflict, CorruptData, InvalidInput, NotFound, OutcomeUnknown, Transient
from offloaderd.objects import keys, marker
from offloaderd.objects.port import ObjectInfo, ObjectReader, ObjectStore
from offloaderd.upkeep.stored import Site

TRIES = 5
NEWEST = "newest"
_TIME = "%Y%m%dT%H%M%SZ"
APART_RECORDS = 1000
"""More are encoded in a thread: 600,000 take some 15 s."""
_DIGITS = 8
_INCOMPLETE = "-incomplete"
_NAME = re.compile(rf"(?P<time>[0-9]{{8}}T[0-9]{{6}}Z)-(?P<deployment>[0-9a-f]{{{_DIGITS}}})(?P<flaw>{_INCOMPLETE})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCapture:
    """A capture in the bucket. `deployment` is the begin of the deployment's id, `complete`: it has no problems.

    `taken_ms` has whole seconds, and is not after the store's time of the object: a daemon's clock may have been wrong.
    """

    name: str
    key: str
    deployment: str
    complete: bool
    taken_ms: int
    size_bytes: int


async def stored_captures(objects: ObjectReader, site: Site, deployment_id: str | None = None) -> list[StoredCapture]:
    """Return the captures of a place, all or those of a deployment, the newest first. Raises as the store does."""
    folder = keys.captures(site.prefix, site.cluster)
    async with aclosing(objects.at(site.bucket).list(folder)) as listed:
        stored = [one async for info in listed if (one := _stored(info, folder)) is not None]
    found = [one for one in stored if deployment_id is None or one.deployment == _begin(deployment_id)]
    return sorted(found, key=lambda one: (one.taken_ms, one.name), reverse=True)


def _stored(info: ObjectInfo, folder: str) -> StoredCapture | None:
    """Return the capture that an object of the folder is; None for any other object."""
    name = info.key.removeprefix(folder).removesuffix(keys.CAPTURE_END)
    match = _NAME.fullmatch(name)
    if match is None or info.key != f"{folder}{name}{keys.CAPTURE_END}":
        return None
    taken = datetime.strptime(match["time"], _TIME).replace(tzinfo=UTC)
    return StoredCapture(
        name=name,
        key=info.key,
        deployment=match["deployment"],
        complete=match["flaw"] is None,
        taken_ms=min(int(taken.timestamp()), info.modified_ms // 1000) * 1000,
        size_bytes=info.size_bytes,
    )


def _begin(deployment_id: str) -> str:
    """Return how a deployment is named; zeros without one."""
    return deployment_id[:_DIGITS].rjust(_DIGITS, "0")


async def _newest(objects: ObjectReader, site: Site, found: Sequence[StoredCapture]) -> StoredCapture | None:
    """Return the newest capture of the deployment to which a place belongs, else of any."""
    marked = None
    with suppress(CorruptData, Archived):
        marked = await marker.read(objects.at(site.bucket), site.prefix, site.cluster)
    own = [one for one in found if marked is not None and one.deployment == _begin(marked.marker.deployment_id)]
    return next(iter(own or found), None)


async def find(objects: ObjectReader, site: Site, name: str = NEWEST) -> StoredCapture | None:
    """Return the capture of a name, or the newest; None if there is none. Raises as the store does."""
    found = await stored_captures(objects, site)
    if name == NEWEST:
        return await _newest(objects, site, found)
    return next((one for one in found if name == one.name), None)


async def read(objects: ObjectReader, site: Site, name: str = NEWEST) -> tuple[StoredCapture, Capture]:
    """Return a capture. Raises NotFound for none of that name, CorruptData, and as the store does."""
    one = await find(objects, site, name)
    if one is None:
        what = "no capture" if name == NEWEST else f"no capture {name}"
        place = f"{site.bucket}/{keys.captures(site.prefix, site.cluster)}"
        raise NotFound(f"{what} in {place}", hint="offloadctl metadata list shows those there are")
    return one, await load(objects, site, one)


async def load(objects: ObjectReader, site: Site, one: StoredCapture) -> Capture:
    """Return the content of a capture. Raises NotFound if it is gone, CorruptData, and as the store does."""
    capture = decode(await objects.at(site.bucket).get(one.key), key=one.key)
    if capture.cluster != site.cluster:
        raise CorruptData(key=one.key, offset=0, expected=f"a capture of {site.cluster!r}", found=capture.cluster)
    return capture


async def write(objects: ObjectStore, site: Site, capture: Capture) -> StoredCapture:
    """Store a capture. Raises Conflict if its deployment has one of that second already, Transient, Denied, NoSpace."""
    time = datetime.fromtimestamp(capture.taken_ms / 1000, UTC).strftime(_TIME)
    name = f"{time}-{_begin(capture.deployment_id)}{_INCOMPLETE if capture.problems else ''}"
    key = f"{keys.captures(site.prefix, site.cluster)}{name}{keys.CAPTURE_END}"
    data = encode(capture) if len(capture.records) < APART_RECORDS else await asyncio.to_thread(encode, capture)
    store = objects.at(site.bucket)
    for _ in range(TRIES):
        try:
            await store.put(key, data, if_etag="")
        except OutcomeUnknown:
            continue
        except Conflict:
            if await store.get(key) != data:  # else an earlier try has stored it
                raise Conflict(f"there is a capture of this second already: {name}", hint="take it again") from None
        return StoredCapture(
            name=name,
            key=key,
            deployment=_begin(capture.deployment_id),
            complete=not capture.problems,
            taken_ms=capture.taken_ms // 1000 * 1000,
            size_bytes=len(data),
        )
    raise Transient(f"the outcome of storing {key} stays unknown")


async def prune(objects: ObjectStore, site: Site, keep: int, deployment_id: str) -> Sequence[StoredCapture]:
    """Delete all captures of a deployment but the newest `keep`, and the newest complete one; return the deleted ones.

    Raises as the store does.
    """
    if keep < 1:
        raise InvalidInput(f"at least one capture has to stay, not {keep}")
    found = await stored_captures(objects, site, deployment_id)
    complete = next((one for one in found if one.complete), None)
    gone = [one for one in found[keep:] if one != complete]
    if gone:
        await objects.at(site.bucket).delete([one.key for one in gone])
    return gone
