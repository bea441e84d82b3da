"""A topic with committed segments whose owner does nothing by itself: what its duties do is told step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from offloaderd.core.model import Position
from offloaderd.metadata import paths
from offloaderd.metadata.records import ownership
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.policy.policies import Level, OffloadPolicies, Origin
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.claim.refusals import TopicIdentity
from offloaderd.segment.resume import LeftBehind
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.topic.offloader import TopicOffloader
from offloaderd.upkeep.deletion import empty_trash
from tests.unit.rigs.rig import LAYOUT, TOPIC, Rig, beside, enabled, memory_ledgers, payloads, until_offloaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.metadata.port import MetadataStore
    from offloaderd.segment.builder import SegmentLayout
    from offloaderd.segment.context import OffloadContext


async def offloaded_topic(*segments: int, ledger_entries: int = 10, layout: SegmentLayout = LAYOUT) -> Rig:
    """Return a rig whose topic was offloaded in segments of so many entries, over ledgers of equal length."""
    rig = Rig(layout=layout)
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=ledger_entries)
    await offload_more(rig, segments)
    return rig


async def offload_more(rig: Rig, segments: Sequence[int], *, seed: int = 0) -> Position:
    """Append and offload so many entries a segment; returns the last position."""
    assert rig.ledgers is not None
    last = Position(0, 0)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        for number, count in enumerate(segments):
            last = await rig.ledgers.append(TOPIC, payloads(count, seed=seed + number))
            await topic.request_roll()
            await until_offloaded(topic, last)
    return last


async def identified(rig: Rig) -> Owned:
    """Claim the topic where it is on record which source its ledgers came from."""
    rig.origin = rig.register = cast("MemoryLedgers", rig.ledgers)
    known = rig.known_source(rig.tree.connect())
    assert known is not None
    await known.confirm()
    owned = await Owned.claim(rig)
    await owned.offloader.identity.load()
    return owned


class Owned:
    """One owner of the topic, made anew for each life of a daemon."""

    def __init__(self, rig: Rig, context: OffloadContext, offloader: TopicOffloader) -> None:
        self.rig = rig
        self.context = context
        self.offloader = offloader

    @classmethod
    async def claim(cls, rig: Rig, metadata: MetadataStore | None = None, *, push_only: bool = False) -> Owned:
        """Raise the epoch and take the topic over."""
        store = rig.tree.connect()
        path = paths.epoch(TOPIC)
        node = await store.get(path)
        epoch = ownership.decode_epoch(node.value, path=path).epoch + 1
        record = ownership.Epoch(epoch=epoch, daemon_id="owner", claimed_ms=1)
        version = await store.replace(path, ownership.encode_epoch(record), node.version)
        context = rig.context(metadata or store, source=None if push_only else rig.ledgers)
        topic_map = await catalog.load(store, TOPIC)
        attempts = AttemptLog(context.metadata, Claim(TOPIC, epoch, version), clock=rig.clock, metrics=rig.metrics)
        identity = TopicIdentity(attempts.fence, clock=rig.clock, metrics=rig.metrics)
        identity.checked.set()  # no owner of a test has a head to read
        return cls(rig, context, TopicOffloader(context, attempts, topic_map, rig.policy, LeftBehind(), identity))

    def book(self, **said: Any) -> PolicyResolver:  # noqa: ANN401 - each value its own type
        """Return what holds for the topic when it says nothing itself."""
        return PolicyResolver(self.context.metadata, [Level(Origin.SETTINGS, OffloadPolicies(**said))])

    async def empty_trash(self) -> int:
        """Empty the trash; returns how many records stayed."""
        return (await empty_trash(self.context, lambda: self.offloader.map)).left

    @property
    def ledgers(self) -> MemoryLedgers:
        """The source."""
        assert isinstance(self.rig.ledgers, MemoryLedgers)
        return self.rig.ledgers

    async def keys(self) -> int:
        """Number of objects in the bucket."""
        return len([info async for info in self.rig.store.list() if not beside(info.key)])
