"""One object of 20 MiB that would take gigabytes to parse: collection, verification and rebuild say so, and go on."""

from __future__ import annotations

from contextlib import aclosing

from offloaderd.objects.retrying import RetryingReader
from offloaderd.upkeep.flaws import Level
from offloaderd.upkeep.gc.findings import Kind, Verdict
from offloaderd.upkeep.verify.cluster import Verifier, Wish
from tests.unit.format.builders import sealed
from tests.unit.read.build import FastClock
from tests.unit.upkeep.site import OURS, Ground, all_keys, index_key, manifest_key, runs
from tests.unit.upkeep.test_gc import kinds
from tests.unit.upkeep.test_rebuild import planned
from tests.unit.upkeep.test_verify import SITE

BOMB = sealed(bytes.fromhex("6200") * (10 << 20))


async def test_the_collector_keeps_it_and_says_so(ground: Ground) -> None:
    """A finished segment that nobody refers to, whose manifest cannot be read; the others are judged as ever."""
    await ground.store(2, runs(1, 0, 3))
    await ground.objects.put(manifest_key(2), BOMB, metadata=OURS)
    await ground.age()
    finds, _ = await ground.collect()
    assert kinds(finds) == dict.fromkeys(all_keys(2), (Kind.UNREADABLE, Verdict.ALARM))


async def test_verification_reports_it(ground: Ground) -> None:
    """The manifest, and an index that is as long."""
    await ground.objects.put(manifest_key(1), BOMB, metadata=OURS)
    await ground.objects.put(index_key(1), bytes(20 << 20), metadata=OURS)
    clock = FastClock()
    verifier = Verifier(ground.objects, [SITE], RetryingReader(ground.objects, clock=clock), clock=clock)
    async with aclosing(verifier.run(Wish(level=Level.FULL))) as reports:
        flaws = [flaw async for report in reports for flaw in report.flaws]
    assert {(flaw.kind, flaw.key) for flaw in flaws} >= {("manifest", manifest_key(1)), ("index", index_key(1))}


async def test_a_rebuild_reports_it(ground: Ground) -> None:
    """And knows not whose it is, so it writes nothing before somebody leaves it out."""
    await ground.store(2, runs(1, 0, 3))
    await ground.objects.put(manifest_key(2), BOMB, metadata=OURS)
    plan = await planned(ground)
    failure_tracker = [one.kind for one in plan.problems] + [
        one.kind for topic in plan.topics for one in topic.problems
    ]
    assert "unreadable" in failure_tracker
