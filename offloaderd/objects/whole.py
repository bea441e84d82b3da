"""Reads of whole objects (indexes and manifests), with bounded memory and without blocking the event loop.

Nearly all are below `AT_ONCE_BYTES` and need one request. A longer one is read again as a whole under a lock, which is
held until its bytes are decoded in a thread. The locks belong to the event loop, so all readers of a daemon share them.
The holder waits for no other reader, nor for a store that is down: `get` tries once; retries are made without the lock.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import structlog

from offloaderd.core.aio import Group
from offloaderd.core.errors import CorruptData, InvalidInput, Transient, first_of

Get = Callable[[int | None], Awaitable[bytes]]
"""Returns the first n bytes of an object, or all of them for None."""

T = TypeVar("T")

log = structlog.get_logger(__name__)

AT_ONCE_BYTES = 512 * 1024
"""The size of a manifest for a segment of 3 GiB in blocks of 1 MiB."""
READS_MAX = 5
"""Reads of an object with different bytes each time before the caller gets Transient."""
APART_BYTES = 64 * 1024
"""Less is decoded without a thread: with the smallest blocks these are 10,000, which take some 50 ms."""


class _Turns(NamedTuple):
    """The locks for holding a long object and for decoding one."""

    hold: asyncio.Lock
    take_apart: asyncio.Lock


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


def _own() -> _Turns:
    """Return the locks of this event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _turns:
        _turns[loop] = _Turns(asyncio.Lock(), asyncio.Lock())
    return _turns[loop]


@asynccontextmanager
async def whole(*gets: Get) -> AsyncIterator[Sequence[bytes]]:
    """Lend the bytes of objects until the block ends; an empty object is no error. Raises the errors of `get`."""
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
    """Return the result of `decode`, a pure function, for the bytes; long ones in a thread, one after the other.

    Raises the errors of `decode`. After a cancellation the thread keeps its lock until it ends.
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
    """Return the result of `decode` for objects, without keeping their bytes. Raises as `decode` and `gets` do."""
    async with whole(*gets) as found:
        return await apart(decode, *found)


async def sure(read: Callable[[], Awaitable[T]], given: Callable[[], T] | None = None) -> T:
    """Return the result of `read`, which fetches bytes; after CorruptData it is called once more.

    One read alone may have been damaged in transit, and a ledger with a damaged copy stays at its source for good.
    `given` makes the first try from bytes that were fetched before. Raises the error of the last read.
    """
    try:
        return await read() if given is None else given()
    except CorruptData as error:
        log.warning("data.read_retried", error=str(error))
    return await read()


async def read_sure(take: Callable[[Get], Awaitable[T]], get: Get) -> T:
    """Return the result of `take` for an object; damaged bytes are read again, as they may be damaged in transit.

    Raises CorruptData after two reads with the same bytes, Transient if all differ, and the errors of `get`.
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
