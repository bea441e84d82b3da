"""Indexes and manifests, which are read whole: long ones are read one at a time, which bounds the memory, and decoded
in a thread, which keeps the event loop free.

Nearly all are below `AT_ONCE_BYTES` and need one request. A longer one is read again as a whole under a lock, which is
held until its bytes are decoded. The locks belong to the event loop, so all readers of a daemon share them. The holder
waits for no other reader, and not for a store that does not answer: `get` tries once, and retries are made without the
lock.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import structlog

from offloaderd.core.aio.groups import Group
from offloaderd.core.errors import CorruptData, InvalidInput, Transient, first_of

Get = Callable[[int | None], Awaitable[bytes]]
"""Returns the first n bytes of an object, or with None all of them."""

T = TypeVar("T")

log = structlog.get_logger(__name__)

AT_ONCE_BYTES = 512 * 1024
"""As many as a manifest has of a segment of 3 GiB in blocks of 1 MiB."""
READS_MAX = 5
"""Reads of one object that give other bytes each time before whoever asks has to wait."""
APART_BYTES = 64 * 1024
"""Less is taken apart at once: of blocks as small as can be these are 10,000, which take some 50 ms."""


class _Turns(NamedTuple):
    """Who may hold a long object, and who may take one apart."""

    hold: asyncio.Lock
    take_apart: asyncio.Lock


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


def _own() -> _Turns:
    """Return the turns of this event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _turns:
        _turns[loop] = _Turns(asyncio.Lock(), asyncio.Lock())
    return _turns[loop]


@asynccontextmanager
async def whole(*gets: Get) -> AsyncIterator[Sequence[bytes]]:
    """Give the bytes of objects that are looked at together, to be forgotten at the end.

    Raises what `get` raises; an empty object is no error.
    """
    found = await _side_by_side([_begun(get) for get in gets])
    long = [number for number, data in enumerate(found) if len(data) >= AT_ONCE_BYTES]
    if not long:
        yield found
        return
    async with _own().hold:
        for number in long:
            found[number] = await gets[number](None)
        yield found


async def apart(decode: Callable[..., T], *data: bytes) -> T:
    """Return what `decode`, which is pure, makes of the bytes; long ones in a thread, one after the other.

    Raises what it raises. A caller that is cancelled leaves the thread its turn until it ends.
    """
    if sum(map(len, data)) < APART_BYTES:
        return decode(*data)
    turn = _own().take_apart
    await turn.acquire()
    try:
        work = asyncio.get_running_loop().run_in_executor(None, decode, *data)
    except BaseException:
        turn.release()
        raise
    work.add_done_callback(lambda _: turn.release())
    return await asyncio.shield(work)


async def read_apart(decode: Callable[..., T], *gets: Get) -> T:
    """Return what `decode` makes of objects, of which nothing else is kept. Raises what it and `gets` raise."""
    async with whole(*gets) as found:
        return await apart(decode, *found)


async def sure(read: Callable[[], Awaitable[T]], given: Callable[[], T] | None = None) -> T:
    """Return what `read` makes of bytes that it fetches; what it finds damaged it reads once more.

    One read alone may have been damaged on its way, and what is called damaged keeps a ledger at its source for good.
    `given` makes the same of bytes that were fetched already, with others. Raises what the last read raises.
    """
    try:
        return await read() if given is None else given()
    except CorruptData as error:
        log.warning("data.read_retried", error=str(error))
    return await read()


async def read_sure(take: Callable[[Get], Awaitable[T]], get: Get) -> T:
    """Return what `take` makes of an object; damaged bytes, which may be so on their way only, are read again.

    Raises CorruptData once two reads had the same ones, Transient while each has others, and what `get` raises.
    """
    before: list[bytes] = []
    damage: CorruptData | None = None
    for _ in range(READS_MAX):
        reads: list[bytes] = []

        async def read(length: int | None, reads: list[bytes] = reads) -> bytes:
            reads.append(await get(length))
            return reads[-1]

        try:
            return await take(read)
        except CorruptData as error:
            if reads == before:
                raise
            before, damage = reads, error
    raise Transient(f"each read has other damage: {damage}", hint="look at the way to the store, and at the store")


async def _begun(get: Get) -> bytes:
    try:
        return await get(AT_ONCE_BYTES)
    except InvalidInput:
        return b""  # an object without a first byte


async def _side_by_side(asked: Sequence[Awaitable[bytes]]) -> list[bytes]:
    if len(asked) == 1:
        return [await asked[0]]

    async def answer(one: Awaitable[bytes]) -> bytes:
        return await one

    try:
        async with Group() as group:
            tasks = [group.create_task(answer(one), name="beginning of an object") for one in asked]
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return [task.result() for task in tasks]
