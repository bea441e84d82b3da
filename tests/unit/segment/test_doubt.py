"""A connection that is lost before or after the server acted, at every call in turn: what was done is found out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import OutcomeUnknown, Transient
from offloaderd.metadata import paths
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import Faults, FaultyMetadata, FaultyStore
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.rigs.lives import recorded
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, offloader_of, payloads, until_offloaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.objects.port import ObjectInfo, PartInfo, Pieces

CALLS = {"create_upload": 1, "upload_part": 3, "complete_upload": 1, "put": 2, "head": 1, "get": 2, "transact": 7}
"""How often each is made for one segment: claim, begin, upload, seal, parts, commit and release are transactions."""

ENTRIES = 500


class Doubt:
    """Loses one call of a kind, and the next one as well when it is to be `stubborn`."""

    def __init__(self, call: str, number: int, when: str, *, stubborn: bool) -> None:
        self._call = call
        self._when = when
        self._number = number
        self._left = 2 if stubborn else 1
        self.fired = 0

    def store(self, operation: str, key: str, when: str) -> Exception | None:
        """Decide over a call of the bucket."""
        return self._decide(operation, when)

    def metadata(self, operation: str, key: str, when: str) -> Exception | None:
        """Decide over a call of the metadata store."""
        return self._decide(operation, when) if operation == "transact" else None

    def _decide(self, operation: str, when: str) -> Exception | None:
        if operation != self._call or when != self._when:
            return None
        self._number -= 1
        if self._number >= 0 or not self._left:
            return None
        self._left -= 1
        self.fired += 1
        if operation in {"head", "get"}:
            return Transient("connection lost")
        return OutcomeUnknown(f"connection lost {when} {operation}")


@pytest.mark.parametrize("stubborn", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("call", "number"), [(call, at) for call, times in CALLS.items() for at in range(times)])
async def test_a_lost_connection_is_settled_at_every_call(call: str, number: int, when: str, stubborn: bool) -> None:
    """One segment, committed once and whole; no upload, object, attempt or trash is left; nothing was given up."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600))
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=300)
    async with rig.engine("setup") as engine:
        await enabled(engine)
    await rig.ledgers.append(TOPIC, payloads(ENTRIES))
    doubt = Doubt(call, number, when, stubborn=stubborn)
    rig.objects = FaultyStore(MemoryStore(rig.clock, part_bytes_min=1), doubt.store)
    async with rig.engine(metadata=FaultyMetadata(rig.tree.connect(), doubt.metadata)) as engine:
        topic = await offloader_of(engine)
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)
        assert topic.failure_tracker.error is None
    assert [payload for _, payload in await rig.committed()] == payloads(ENTRIES)
    assert len((await catalog.load(rig.tree.connect(), TOPIC)).segments) == 1
    assert await rig.leftovers() == []
    assert recorded(rig) is None
    assert list(await rig.tree.connect().children(paths.trash(TOPIC))) == []
    assert rig.metrics.segments.labels(state="failed")._value.get() == 0
    assert doubt.fired


async def offloaded(rig: Rig) -> None:
    """Offload entries to the store that the rig was given, until everything is committed."""
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=300)
    await rig.ledgers.append(TOPIC, payloads(ENTRIES))
    async with rig.engine() as engine:
        await enabled(engine)
        topic = await offloader_of(engine)
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)
    assert [payload for _, payload in await rig.committed()] == payloads(ENTRIES)


async def test_a_part_that_arrived_is_not_sent_again() -> None:
    """Its answer was lost; what the store has of it is looked at, and is the same."""
    rig, faults = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600)), Faults()
    rig.objects = FaultyStore(MemoryStore(rig.clock, part_bytes_min=1), faults)
    faults.lose_answer("upload_part", times=2)
    await offloaded(rig)
    assert sum(1 for asked in faults.asked if asked.startswith("upload_part")) == CALLS["upload_part"]
    assert faults.fired == 2


async def test_a_part_of_which_the_store_has_other_bytes_is_sent_again() -> None:
    """What it has under that number was not sent now: as many bytes, stored by a request of before or damaged."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600))
    rig.objects = store = OtherBytesOnce(rig.clock, part_bytes_min=1)
    await offloaded(rig)
    assert store.sent == CALLS["upload_part"] + 1
    assert rig.metrics.segments.labels(state="failed")._value.get() == 0


class OtherBytesOnce(MemoryStore):
    """Has other bytes in place of the first part that is sent, and does not answer."""

    sent = 0

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """See MultipartStore."""
        self.sent += 1
        if self.sent > 1:
            return await super().upload_part(key, upload_id, part_number, pieces)
        data = b"".join(pieces)
        await super().upload_part(key, upload_id, part_number, (bytes([*data[:-1], data[-1] ^ 1]),))
        raise OutcomeUnknown("it hung up")


async def test_an_upload_that_is_gone_is_known_although_no_answer_comes() -> None:
    """The store hangs up on every part of an upload it does not have: the segment begins anew under another id."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600))
    rig.objects = store = GoneOnce(rig.clock, part_bytes_min=1)
    await offloaded(rig)
    assert store.gone
    assert rig.metrics.segments.labels(state="failed")._value.get() == 1


class GoneOnce(MemoryStore):
    """Loses its first upload when a part comes, and answers no more to that upload's parts."""

    gone = ""

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """See MultipartStore."""
        if not self.gone:
            await self.abort_upload(key, upload_id)
            self.gone = upload_id
        if upload_id == self.gone:
            raise OutcomeUnknown("it hung up")
        return await super().upload_part(key, upload_id, part_number, pieces)


async def test_an_object_that_another_owner_completed_is_compared_with_the_parts() -> None:
    """The upload is gone, and an object of the right size is there: with other parts it is given up, not committed."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600))
    rig.objects = store = CompletedByAnother(rig.clock, part_bytes_min=1)
    await offloaded(rig)
    assert store.done
    assert rig.metrics.segments.labels(state="failed")._value.get() == 1


class CompletedByAnother(MemoryStore):
    """Has its first upload completed by somebody else, with other bytes in its first part."""

    done = False

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """See MultipartStore."""
        if not self.done:
            self.done = True
            _, data = self._uploads[upload_id].parts[1]
            first = await self.upload_part(key, upload_id, 1, (bytes([*data[:-1], data[-1] ^ 1]),))
            await super().complete_upload(key, upload_id, [first, *parts[1:]])
        return await super().complete_upload(key, upload_id, parts)
