"""Bit rot: whatever becomes of stored bytes is found by verifying, and wrong bytes are never handed to readers (P1).

One thing the bucket alone cannot tell: a segment at an end of the topic of which all that would name it is gone looks
like one that was deleted by rule, or never finished. The map tells.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData, NotFound
from offloaderd.core.model import Position
from offloaderd.format import v2
from offloaderd.objects.retrying import RetryingReader
from offloaderd.upkeep.flaws import Level
from offloaderd.upkeep.stored import Site
from offloaderd.upkeep.verify.cluster import Verifier, Wish
from tests.unit.format.builders import Run
from tests.unit.read.build import FastClock, make_read_rig
from tests.unit.upkeep.site import (
    BUCKET,
    CLUSTER,
    OURS,
    PREFIX,
    TOPIC,
    Ground,
    data_key,
    index_key,
    manifest_key,
)
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import Callable

SEGMENTS = 3
MAKERS = (data_key, index_key, manifest_key)
Objects = dict[str, bytes]


def payload(ledger_id: int, entry_id: int) -> bytes:
    """Return an entry's payload; lengths vary, and include 0."""
    return f"{ledger_id}:{entry_id};".encode() * (entry_id % 5)


def block(ledger_id: int, first: int, count: int) -> Run:
    """Return a block."""
    return Run(ledger_id, first, [payload(ledger_id, entry) for entry in range(first, first + count)])


async def filled() -> Ground:
    """Three segments of one topic, alike in their shape so that objects of one could pass for another's."""
    site = Ground()
    await site.enable()
    for number in range(1, SEGMENTS + 1):
        first = 12 * number - 12
        described = await site.store(number, [block(1, first, 5), block(1, first + 5, 5), block(1, first + 10, 2)])
        await site.commit(described)
    return site


@dataclass(frozen=True)
class Damage:
    """One thing that happens to one or two objects. Numbers say which and where, modulo what there is."""

    kind: str
    segment: int
    maker: int
    at: int
    length: int
    mask: int
    other: int

    def __call__(self, objects: Objects) -> None:
        """Let it happen."""
        name, other = self._key(self.segment), self._key(self.segment + 1 + self.other % (SEGMENTS - 1))
        data = objects.get(name)
        if not data or (self.kind in {"swap", "copy"} and other not in objects):
            return
        at = self.at % len(data)
        change: dict[str, Callable[[], object]] = {
            "flip": lambda: objects.update({name: data[:at] + bytes([data[at] ^ self.mask]) + data[at + 1 :]}),
            "zero": lambda: objects.update(
                {name: data[:at] + bytes(len(data[at : at + self.length])) + data[at + self.length :]}
            ),
            "shift": lambda: objects.update({name: data[:at] + data[at + 1 :] + b"\0"}),
            "cut": lambda: objects.update({name: data[:at]}),
            "grow": lambda: objects.update({name: data + bytes([self.mask]) * self.length}),
            "repeat": lambda: objects.update({name: data[: at + self.length] + data[at:]}),
            "swap": lambda: objects.update({name: objects[other], other: data}),
            "copy": lambda: objects.update({name: objects[other]}),
            "lose": lambda: objects.pop(name),
            "empty": lambda: objects.update({name: b""}),
        }
        change[self.kind]()

    def _key(self, number: int) -> str:
        return MAKERS[self.maker % 3](number % SEGMENTS + 1)


KINDS = ("flip", "zero", "shift", "cut", "grow", "repeat", "swap", "copy", "lose", "empty")
damages = st.builds(
    Damage,
    kind=st.sampled_from(KINDS),
    segment=st.integers(0, SEGMENTS - 1),
    maker=st.integers(0, 2),
    at=st.integers(0, 2000),
    length=st.integers(1, 40),
    mask=st.integers(1, 255),
    other=st.integers(0, SEGMENTS - 2),
)


async def stored(ground: Ground) -> Objects:
    """Return all objects."""
    return {key: await ground.objects.get(key) for key in await ground.keys()}


async def problems(ground: Ground, *, against_map: bool) -> list[str]:
    """Verify everything; returns what is wrong."""
    clock = FastClock()
    metadata = ground.metadata if against_map else None
    site = Site(cluster=CLUSTER, bucket=BUCKET, prefix=PREFIX)
    verifier = Verifier(
        ground.objects, [site], RetryingReader(ground.objects, clock=clock), clock=clock, metadata=metadata
    )
    async with aclosing(verifier.run(Wish(level=Level.FULL))) as reports:
        return [str(flaw) for report in [one async for one in reports] for flaw in report.flaws if flaw.is_problem]


async def served(ground: Ground) -> tuple[int, int]:
    """Read every segment as a reader does: all that comes out has to be right. Returns (entries, refusals)."""
    rig = make_read_rig(store=ground.memory)
    entries = refused = 0
    async with rig.reader as reader:
        for segment in (await ground.map()).segments:
            try:
                async with aclosing(reader.segments.read(TOPIC, segment, segment.begin, segment.end)) as batches:
                    expected = segment.begin
                    async for batch in batches:
                        for entry_id, data in enumerate(batch.payloads, batch.first_entry_id):
                            assert Position(batch.ledger_id, entry_id) == expected
                            assert data == payload(batch.ledger_id, entry_id)
                            expected = Position(expected.ledger_id, expected.entry_id + 1)
                            entries += 1
                assert expected.entry_id == segment.end.entry_id + 1
            except (CorruptData, NotFound):
                refused += 1
    return entries, refused


async def put_all(ground: Ground, objects: Objects) -> None:
    """Make the bucket hold exactly these."""
    await ground.objects.delete([key for key in await ground.keys() if key not in objects])
    for key, data in objects.items():
        await ground.objects.put(key, data, metadata=OURS)


async def survive(suffered: list[Damage]) -> None:
    """Damage a bucket, verify it and read it."""
    ground = await filled()
    before = await stored(ground)
    after = dict(before)
    for damage in suffered:
        damage(after)
    await put_all(ground, after)
    changed = {key for key in before if before[key] != after.get(key)}
    assert bool(await problems(ground, against_map=True)) == bool(changed), changed
    lost = [sum(make(number) not in after for make in MAKERS) for number in range(1, SEGMENTS + 1)]
    if max(lost) <= 1:
        assert bool(await problems(ground, against_map=False)) == bool(changed), changed
    entries, refused = await served(ground)
    if not changed:
        assert (entries, refused) == (36, 0)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(damages, min_size=1, max_size=3))
def test_whatever_happens_to_stored_bytes_is_found_and_never_served(suffered: list[Damage]) -> None:
    """Flips, zeroes, cuts, shifts, swaps and losses, of data, index and manifest: found each time, served never."""
    virtually(survive(suffered))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("maker", range(3))
async def test_each_damage_to_each_object_is_found(kind: str, maker: int) -> None:
    """One by one, so that none depends on chance."""
    await survive([Damage(kind=kind, segment=1, maker=maker, at=70, length=9, mask=1, other=0)])


async def test_blocks_that_change_places_are_found() -> None:
    """Two sound blocks of one object, each in the other's place, as after a write that went astray."""
    ground = await filled()
    data = await ground.objects.get(data_key(2))
    first = v2.decode_header(data, key="k", at=0).block_bytes
    second = v2.decode_header(data[first:], key="k", at=0).block_bytes
    swapped = data[first : first + second] + data[:first] + data[first + second :]
    await ground.objects.put(data_key(2), swapped, metadata=OURS)
    assert await problems(ground, against_map=False)
    assert (await served(ground))[1] == 1
