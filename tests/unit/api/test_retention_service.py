"""RetentionService over gRPC, on a real topic: what is listed, what is deleted, who may revoke."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from offloaderd.api.retention import RetentionService
from offloaderd.client import calls
from offloaderd.core.errors import Conflict, InvalidInput, NotFound, OffloaderError, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import LedgerEnd, LedgerInfo
from offloaderd.metadata import paths, pieces
from offloaderd.metadata.records.grant import Grant
from offloaderd.metadata.topic_map import removal
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.protocol.v1 import retention_pb2, retention_pb2_grpc
from offloaderd.upkeep.grants.grants import Grants
from offloaderd.upkeep.retention import LedgerRow, Retention, deletion_plan, ledger_rows
from offloaderd.upkeep.settings import RetentionSettings
from tests.unit.api.serve import Client, serving
from tests.unit.metadata.segments import made
from tests.unit.metadata.test_removal import TOPIC as OTHER
from tests.unit.rigs.counted import CountedMetadata
from tests.unit.rigs.owned import Owned, offloaded_topic
from tests.unit.rigs.rig import TOPIC
from tests.unit.upkeep.test_grants import OPTIONS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from offloaderd.fleet.engine import Engine
    from offloaderd.ledgers.port import LedgerSource
    from offloaderd.topic.offloader import TopicOffloader

REAL_TIME = "gRPC"


class Topics:
    """One topic with its owner, here or elsewhere."""

    def __init__(self, owned: Owned) -> None:
        self.owner: TopicOffloader | OffloaderError = owned.offloader
        self.offloader = owned.offloader

    async def owned(self, topic: object) -> TopicOffloader:
        """Return the owner, or say why not."""
        if isinstance(self.owner, OffloaderError):
            raise self.owner
        return self.owner

    def find(self, topic: object) -> TopicOffloader | None:
        """Return the owner, if that is here."""
        return self.owner if not isinstance(self.owner, OffloaderError) else None

    def known(self, topic: object) -> TopicMap | None:
        """Return the map, which is in memory."""
        return self.offloader.map


class Away:
    """A source that cannot be reached."""

    async def ledgers(self, topic: object) -> Iterator[object]:
        """Fail."""
        raise Transient("the source is away")


@asynccontextmanager
async def _served(owned: Owned, source: object = None) -> AsyncIterator[tuple[Client, Topics]]:
    topics = Topics(owned)
    retention = Retention(owned.context, owned.ledgers, RetentionSettings(), owned.book())
    where = cast("LedgerSource", source or owned.ledgers)
    service = RetentionService(cast("Engine", topics), retention, owned.context.metadata, where, owned.rig.clock)
    async with (
        serving(
            Metrics(), lambda server: retention_pb2_grpc.add_RetentionServiceServicer_to_server(service, server)
        ) as channel,
        asyncio.TaskGroup() as group,
    ):
        duty = group.create_task(retention.run(owned.offloader))
        yield Client(channel), topics
        duty.cancel()


async def test_ledgers_are_listed_with_what_became_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Granted ones with who verified them and when, the open one, and how much was deleted in all."""
    rig = await offloaded_topic(10, 10, 5)
    owned = await Owned.claim(rig)
    await Grants(owned.context, None, OPTIONS, owned.book(deletion_lag_s=60.0), daemon_id="one").run_once(
        owned.offloader, {}
    )
    async with _served(owned) as (client, _):
        found = await client.ledgers(TOPIC)
        assert [(one.ledger_id, one.state, one.offloaded_entries, one.at_source) for one in found.ledgers] == [
            (0, "granted", 10, True),
            (1, "granted", 10, True),
            (2, "open", 5, True),
        ]
        grant = found.ledgers[0].grant
        assert (grant.daemon_id, grant.readback, grant.epoch) == ("one", True, owned.offloader.claim.epoch)
        assert grant.verified_ms + 60_000 >= grant.not_before_ms > grant.verified_ms
        assert not found.HasField("floor")
        await owned.ledgers.delete(TOPIC, 0)
        await client.delete_ledgers(TOPIC, [0])
        monkeypatch.setattr(calls, "PAGE_SIZE", 1)
        found = await client.ledgers(TOPIC)
        assert [one.ledger_id for one in found.ledgers] == [1, 2]
        assert (found.floor.ledger_id, found.floor.entry_id, found.deleted_segments) == (0, 9, 1)
        assert found.deleted_bytes > 0


@pytest.mark.parametrize("here", [True, False])
async def test_a_page_of_ledgers_reads_what_it_shows(*, here: bool) -> None:
    """Contexts and grants of its ledgers; those of an owner are in memory. All pages are the list of one page."""
    rig = await offloaded_topic(*[10] * 9)
    store = CountedMetadata(rig.tree)
    owned = await Owned.claim(rig, store)
    async with _served(owned) as (client, topics):
        if not here:
            topics.owner = Conflict("owned by another daemon", hint="ask it at h:1")
        for ledger_id in (1, 4, 8):
            await client.revoke_grant(TOPIC, ledger_id, reason="legal hold")
        whole = (await client.ledgers(TOPIC)).ledgers
        assert [one.ledger_id for one in whole] == [*range(9)]
        request = retention_pb2.ListLedgersRequest(topic=str(TOPIC), page_size=3)
        found: list[retention_pb2.Ledger] = []
        reads: list[list[str]] = []
        while not found or request.page_token:
            store.below("")
            answer = await client._retention.ListLedgers(request)
            found, request.page_token = [*found, *answer.ledgers], answer.next_page_token
            reads.append(sorted(store.below(paths.topic(TOPIC))))
        assert found == [*whole]
        contexts = [paths.ledgers(TOPIC), paths.floor(TOPIC)]
        for number, granted in enumerate((1, 4, 8)):
            shown = range(3 * number, 3 * number + 3)
            of_map = [] if here else [*contexts, *(paths.ledger(TOPIC, one) for one in shown)]
            assert reads[number] == sorted([*of_map, paths.grants(TOPIC), paths.grant(TOPIC, granted)])


async def test_a_source_that_is_away_is_told_and_the_rest_listed() -> None:
    """Nothing is claimed of the source; what the tier has is shown all the same."""
    owned = await Owned.claim(await offloaded_topic(10, 10))
    async with _served(owned, Away()) as (client, _):
        found = await client.ledgers(TOPIC)
    assert "the source is away" in found.source_error
    assert [(one.state, one.HasField("at_source")) for one in found.ledgers] == [("offloaded", False)] * 2


async def test_deleting_says_what_goes_and_what_waits() -> None:
    """A dry run changes nothing; what the source has, or another daemon owns, is refused."""
    owned = await Owned.claim(await offloaded_topic(15, 15, 5))
    before = owned.offloader.map
    async with _served(owned) as (client, topics):
        with pytest.raises(Conflict, match="still has ledger 0"):
            await client.delete_ledgers(TOPIC, [0])
        for ledger_id in (0, 1, 2):
            await owned.ledgers.delete(TOPIC, ledger_id)
        planned = await client.delete_ledgers(TOPIC, [0, 2], dry_run=True)
        assert (list(planned.marked), list(planned.segments), list(planned.waits_for)) == ([0, 2], [], [1])
        assert owned.offloader.map == before
        done = await client.delete_ledgers(TOPIC, [0, 1])
        assert list(done.marked) == [0, 1]
        assert [one.segment_id for one in done.segments] == [str(before.segments[0].segment_id)]
        assert list(done.waits_for) == [2]
        assert owned.offloader.map.segments == before.segments[1:]
        for wrong in ([], [-1]):
            with pytest.raises(InvalidInput):
                await client.delete_ledgers(TOPIC, wrong)
        with pytest.raises(NotFound):
            await client.delete_ledgers(TOPIC, [77])
        topics.owner = Conflict("owned by another daemon", hint="ask it at h:1")
        with pytest.raises(Conflict, match="another daemon"):
            await client.delete_ledgers(TOPIC, [2])


async def test_any_daemon_revokes_and_allows() -> None:
    """It needs no owner; the reason is kept and shown."""
    owned = await Owned.claim(await offloaded_topic(10, 10))
    async with _served(owned) as (client, topics):
        topics.owner = Conflict("owned by another daemon")
        grant = await client.revoke_grant(TOPIC, 0, reason="legal hold")
        assert grant.revoked_reason == "legal hold"
        found = (await client.ledgers(TOPIC)).ledgers[0]
        assert (found.state, found.grant.revoked_ms) == ("revoked", grant.revoked_ms)
        await client.allow_grant(TOPIC, 0)
        assert (await client.ledgers(TOPIC)).ledgers[0].state == "offloaded"
        with pytest.raises(NotFound):
            await client.allow_grant(TOPIC, 0)
        with pytest.raises(InvalidInput):
            await client.revoke_grant(TOPIC, -5)


async def test_a_hold_on_a_ledger_that_does_not_exist_is_refused() -> None:
    """A typo protects nothing. While the source does not answer nobody knows, and the hold is taken."""
    owned = await Owned.claim(await offloaded_topic(10, 10))
    async with _served(owned) as (client, _):
        with pytest.raises(NotFound, match="has no ledger 99, neither offloaded nor at the source") as caught:
            await client.revoke_grant(TOPIC, 99)
        assert "ledgers list" in caught.value.hint
        await owned.ledgers.delete(TOPIC, 0)
        assert (await client.revoke_grant(TOPIC, 0)).revoked_ms
    async with _served(owned, Away()) as (client, _):
        assert (await client.revoke_grant(TOPIC, 99)).revoked_ms


def test_every_state_of_a_ledger() -> None:
    """Marked before revoked before granted before offloaded; without a source only the newest may still be open."""
    current = TopicMap(OTHER)
    for number, ledger in enumerate((3, 5, 8), start=1):
        _, current = current.with_commit(made(number, (ledger, 0, 9)), {3: LedgerEnd(10, 5)})
    grants = {3: Grant(ledger_id=3, verified_ms=1)}

    def rows_of(topic_map: TopicMap, source: list[LedgerInfo] | None, known: dict[int, Grant]) -> list[LedgerRow]:
        contexts = {one: pieces.joined(stored, paths.ledger(OTHER, one)) for one, stored in topic_map.contexts.items()}
        every = sorted(contexts.keys() | {one.ledger_id for one in source or ()})
        return ledger_rows([*every, 99], contexts, source, known, newest=max(contexts))

    def states(topic_map: TopicMap, source: list[LedgerInfo] | None, known: dict[int, Grant]) -> list[str]:
        return [row.state for row in rows_of(topic_map, source, known)]

    assert states(current, None, {}) == ["offloaded", "closed", "open"]
    assert states(current, None, grants) == ["granted", "closed", "open"]
    assert states(current, None, {3: replace(grants[3], revoked_ms=1)}) == ["revoked", "closed", "open"]
    assert states(removal.mark_deleted(current, [3], now_ms=4)[1], None, grants) == ["deleted", "closed", "open"]
    source = [
        LedgerInfo(ledger_id=8, closed=True, entries=12, size_bytes=1),
        LedgerInfo(ledger_id=9, closed=False, entries=0, size_bytes=0),
    ]
    rows = rows_of(current, source, {})
    assert [(row.state, row.entries, row.at_source) for row in rows[2:]] == [("closed", 12, True), ("open", 0, True)]
    assert [row.entries for row in rows[:2]] == [10, None]


def test_a_plan_reports_waiting_only_where_something_waits() -> None:
    """Ledgers that nobody marked are no obstacle to anything while no marked one lies behind them."""
    current = TopicMap(OTHER)
    for number, ledger in enumerate((3, 5, 8), start=1):
        _, current = current.with_commit(made(number, (ledger, 0, 9)))
    assert deletion_plan(current, [3]).waits_for == ()
    assert [one.begin.ledger_id for one in deletion_plan(current, [3, 5, 8]).segments] == [3, 5, 8]
    assert deletion_plan(current, [8]).waits_for == (3,)
