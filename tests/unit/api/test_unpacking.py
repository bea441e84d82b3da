"""Entries of some kilobytes that unpack to megabytes, read by many: memory and the event loop stay within bounds."""

from __future__ import annotations

import asyncio
import threading
import zlib
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.api import read as messages
from offloaderd.api.gate import CALLER, Caller
from offloaderd.api.read import ReadService
from offloaderd.core.errors import Throttled
from offloaderd.core.model import Position
from offloaderd.core.names.patterns import Scope
from offloaderd.core.quotas import Account, Accounts, Quotas
from offloaderd.format.pulsar.messages import MESSAGE_BYTES, decode_entry, unpacked_bytes
from offloaderd.protocol.v1 import read_pb2
from tests.unit.api.test_read_service import entry, rig_of
from tests.unit.read.build import sample, turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine

    from tests.unit.read.build import ReadRig

REAL_TIME = "threads"

MIB = 1 << 20
REQUEST = read_pb2.ReadRequest(topic="orders")


def bomb(size: int) -> bytes:
    """Return an entry that unpacks to so many bytes."""
    return entry(zlib.compress(bytes(size)), compression=2, uncompressed_size=size)


def reads(service: ReadService) -> AsyncGenerator[read_pb2.ReadMessagesResponse, None]:
    """Begin a read of all messages."""
    return service.ReadMessages(REQUEST, None)  # type: ignore[arg-type, return-value] # nobody asks for the context


def used(rig: ReadRig) -> float:
    """Return what is held by all reads."""
    return sample(rig.metrics, "offloaderd_memory_used_bytes", {"pool": "unpack"})


async def test_what_all_reads_unpack_is_in_one_budget() -> None:
    """Each has its turn, as long as it needs to send what it has unpacked; the loop does other things meanwhile."""
    rig = await rig_of([bomb(12 * MIB), entry(b"after")])
    service = ReadService(rig.reader, 8, metrics=rig.metrics, unpack_bytes=50 * MIB)
    async with rig.reader:
        many = [reads(service) for _ in range(6)]
        first = [asyncio.ensure_future(anext(one)) for one in many]  # noqa: TID251 - each ends below
        for _ in range(2):
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            await turns(50)
        while len([one for one in first if one.done()]) < 2:
            await asyncio.wait([one for one in first if not one.done()], return_when=asyncio.FIRST_COMPLETED)
        assert used(rig) <= 25 * MIB
        for one in many:
            number = many.index(one)
            assert len((await first[number]).messages[0].data) == 12 * MIB
            assert used(rig) <= 25 * MIB
            assert [len(answer.messages) async for answer in one] == [1]
        assert used(rig) == 0


async def test_large_entries_are_unpacked_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones at once."""
    threads: list[bool] = []

    def decoded(*arguments: Any, **more: Any) -> Any:  # noqa: ANN401 - those of decode_entry
        threads.append(threading.current_thread() is threading.main_thread())
        return decode_entry(*arguments, **more)

    monkeypatch.setattr(messages, "decode_entry", decoded)
    rig = await rig_of([bomb(1000), bomb(4 * MIB), bomb(1000)])
    async with rig.reader:
        service = ReadService(rig.reader, 8, metrics=rig.metrics)
        assert sum([len(answer.messages) async for answer in reads(service)]) == 3
    assert threads == [True, False, True]


async def test_chunks_that_wait_are_refused_where_they_find_no_room() -> None:
    """By the name of the limit; what they held is free when the read has ended."""
    part = entry(bytes(2 * MIB), uuid="m", chunk_id=0, num_chunks_from_msg=3)
    rig = await rig_of([part, entry(bytes(2 * MIB), uuid="n", chunk_id=0, num_chunks_from_msg=3), part])
    async with rig.reader:
        service = ReadService(rig.reader, 8, metrics=rig.metrics, unpack_bytes=4 * MIB)
        with pytest.raises(Throttled) as refused:
            assert [answer async for answer in reads(service)]
        assert "memory.unpack_bytes" in refused.value.hint
        assert used(rig) == 0


def begun_by(name: str, asking: Coroutine[Any, Any, Any], account: Account | None = None) -> asyncio.Task[Any]:
    """Ask as somebody, for a namespace."""
    context = copy_context()
    caller = Caller(need=None, path="", rights=None, send_s_max=0.0, name=name, via="certificate", account=account)
    context.run(CALLER.set, caller)
    return asyncio.get_running_loop().create_task(asking, context=context)


async def all_of(reading: AsyncGenerator[read_pb2.ReadMessagesResponse, None]) -> list[read_pb2.Message]:
    """Read to the end."""
    return [message async for answer in reading for message in answer.messages]


async def test_one_who_takes_no_answers_leaves_room_for_others() -> None:
    """However many reads it has: what it does not take it holds once, and the others unpack beside it."""
    rig = await rig_of([bomb(6 * MIB), entry(b"after")])
    service = ReadService(rig.reader, 8, metrics=rig.metrics, unpack_bytes=32 * MIB)
    async with rig.reader:
        sleeping = [reads(service) for _ in range(3)]
        begun = [begun_by("mallory", one.__anext__()) for one in sleeping]
        await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
        await turns(50)
        assert used(rig) == 6 * MIB
        other = reads(service)
        assert len((await begun_by("bob", other.__anext__())).messages[0].data) == 6 * MIB
        for task in begun:
            task.cancel()
        await asyncio.wait(begun)
        for one in (*sleeping, other):
            await one.aclose()
    assert used(rig) == 0


async def test_a_read_that_waits_for_its_rate_holds_no_memory() -> None:
    """A namespace with a low rate leaves the memory to those that send what they unpack; it goes on once it may."""
    rig = await rig_of([bomb(6 * MIB), entry(b"after")])
    accounts = Accounts(rig.reader.clock, rig.metrics)
    accounts.follow({(scope := Scope("acme", "eu")): Quotas(read_bytes_per_s=1)})
    account = accounts.at(scope)
    account.sent(1000)
    service = ReadService(rig.reader, 8, metrics=rig.metrics, unpack_bytes=16 * MIB)
    async with rig.reader:
        slow = reads(service)
        waiting = begun_by("mallory", slow.__anext__(), account)
        other = reads(service)
        assert len((await anext(other)).messages[0].data) == 6 * MIB
        await other.aclose()
        assert not waiting.done()
        assert used(rig) == 0
        accounts.follow({})
        assert len((await waiting).messages[0].data) == 6 * MIB
        await slow.aclose()


async def test_chunks_of_one_that_never_end_leave_room_for_others() -> None:
    """One identity may have half of what there is, and is told that it is its own share that is taken."""
    parts = [entry(bytes(2 * MIB), uuid="m", chunk_id=one, num_chunks_from_msg=4) for one in range(3)]
    rig = await rig_of(parts)
    service = ReadService(rig.reader, 8, metrics=rig.metrics, unpack_bytes=32 * MIB)
    follow = read_pb2.ReadRequest(topic="orders", follow=True)
    async with rig.reader:
        waiting = service.ReadMessages(follow, None)  # type: ignore[arg-type] # nobody asks for the context
        begun = begun_by("mallory", all_of(waiting))  # type: ignore[arg-type] # a generator
        while used(rig) < 6 * MIB:
            await turns(10)
        with pytest.raises(Throttled) as refused:
            await begun_by("mallory", all_of(reads(service)))
        assert "this caller may have" in refused.value.message
        assert used(rig) == 6 * MIB
        assert len(await begun_by("bob", all_of(reads(service)))) == 3
        begun.cancel()
        await asyncio.wait([begun])
        assert len(await begun_by("mallory", all_of(reads(service)))) == 3
    assert used(rig) == 0


def test_a_batch_of_more_messages_than_there_is_room_for_is_left_as_it_is() -> None:
    """Messages without data take a hundred times what they are in the batch."""
    content = (b"\x00\x00\x00\x02\x18\x00") * 100_000
    fields = {"compression": 2, "uncompressed_size": len(content), "num_messages_in_batch": 100_000}
    payload = entry(zlib.compress(content), **fields)
    (found,) = decode_entry(Position(1, 0), payload, content_bytes_max=16 * MIB)
    assert found.data == payload
    assert "a batch of 100000 messages is more than 65536" in found.reason
    room = 100_000 * MESSAGE_BYTES
    assert len(decode_entry(Position(1, 0), payload, content_bytes_max=room)) == 100_000
    assert unpacked_bytes(payload, content_bytes_max=room) == len(content) + room


def test_what_an_entry_unpacks_to_is_what_its_producer_says() -> None:
    """Nothing for what is not unpacked: encrypted, waiting for other chunks, too large, or no message at all."""
    assert unpacked_bytes(bomb(5 * MIB)) == 5 * MIB
    assert unpacked_bytes(bomb(5 * MIB), content_bytes_max=MIB) == 0
    assert unpacked_bytes(b"no message") == 0
    assert unpacked_bytes(entry(bytes(9))) == 0
    chunk = {"compression": 2, "uncompressed_size": 7 * MIB, "uuid": "m", "num_chunks_from_msg": 2}
    assert [unpacked_bytes(entry(b"x", chunk_id=one, **chunk)) for one in (0, 1)] == [0, 7 * MIB]
