"""How long the source keeps a ledger after its offloading: by policy, also of grants that are there already."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from offloaderd.metadata import paths
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.policy.records import LevelPolicy, encode_level
from offloaderd.policy.resolver import node_of
from offloaderd.upkeep.grants import records as grant_records
from offloaderd.upkeep.grants.grants import NEVER_MS, Grants
from offloaderd.upkeep.settings import GrantSettings
from tests.unit.rigs.owned import Owned, offloaded_topic
from tests.unit.rigs.rig import TOPIC, turn

if TYPE_CHECKING:
    from offloaderd.ledgers.port import LedgerStore

OPTIONS = GrantSettings(readback=False, interval_s=3600.0)


NEVER = 10**6


async def _owned() -> Owned:
    """A topic with two closed ledgers that are offloaded, and an open one."""
    return await Owned.claim(await offloaded_topic(10, 10, 5))


async def _looked(owned: Owned, lag_s: float, store: LedgerStore | None = None) -> dict[int, int]:
    """Look once under a lag; return from when each ledger may go, relative to its offloading, in seconds."""
    await Grants(owned.context, store, OPTIONS, owned.book(deletion_lag_s=lag_s), daemon_id="one").run_once(
        owned.offloader, {}
    )
    return await _lags(owned)


async def _lags(owned: Owned) -> dict[int, int]:
    grants = await grant_records.load_all(owned.rig.tree.connect(), TOPIC)
    offloaded = {one.slices[0].ledger_id: one.offloaded_ms for one in owned.offloader.map.segments}
    return {
        ledger_id: NEVER if grant.not_before_ms == NEVER_MS else (grant.not_before_ms - offloaded[ledger_id]) // 1000
        for ledger_id, grant in grants.items()
    }


async def _present(owned: Owned) -> list[int]:
    return [info.ledger_id for info in await owned.ledgers.ledgers(TOPIC)]


async def test_a_longer_lag_keeps_what_was_granted() -> None:
    """The grant would allow it by now; the policy does not any more, and the deletion heeds it in the same look."""
    owned = await _owned()
    assert await _looked(owned, 0.0) == {0: 0, 1: 0}
    assert await _looked(owned, 3600.0, owned.ledgers) == {0: 3600, 1: 3600}
    assert await _present(owned) == [0, 1, 2]


async def test_a_shorter_lag_lets_it_go() -> None:
    """What was granted for later goes now."""
    owned = await _owned()
    await _looked(owned, 3600.0, owned.ledgers)
    assert await _present(owned) == [0, 1, 2]
    await _looked(owned, 0.0, owned.ledgers)
    assert await _present(owned) == [2]


async def test_a_lag_that_is_off_keeps_ledgers_for_ever() -> None:
    """As Pulsar's null and negative numbers; the copies are verified all the same, and a lag sets them free again."""
    owned = await _owned()
    for _ in range(2):
        assert await _looked(owned, -1.0, owned.ledgers) == {0: NEVER, 1: NEVER}
    assert await _present(owned) == [0, 1, 2]
    assert await _looked(owned, 7.0) == {0: 7, 1: 7}
    assert await _looked(owned, -1.0) == {0: NEVER, 1: NEVER}
    await _looked(owned, 0.0, owned.ledgers)
    assert await _present(owned) == [2]


async def test_a_revoked_grant_is_left_as_it_is() -> None:
    """A lag is no reason to write over an operator's word."""
    owned = await _owned()
    await _looked(owned, 5.0)
    store = owned.rig.tree.connect()
    await grant_records.revoke(store, TOPIC, 0, reason="hold", now_ms=7)
    assert await _looked(owned, 0.0, owned.ledgers) == {0: 5, 1: 0}
    assert await _present(owned) == [0, 2]


async def test_a_change_of_the_policy_is_heeded_at_once() -> None:
    """The duty does not wait for its next look, an hour later."""
    owned = await _owned()
    store = owned.rig.tree.connect()
    grants = Grants(owned.context, None, OPTIONS, owned.book(deletion_lag_s=1.0), daemon_id="one")
    async with asyncio.TaskGroup() as group:
        duty = group.create_task(grants.run(owned.offloader))
        await _until(owned, {0: 1, 1: 1})
        said = LevelPolicy(OffloadPolicies(deletion_lag_s=9.0))
        await store.create(node_of((TOPIC.tenant, TOPIC.namespace)), encode_level(said))
        owned.offloader.policy_changed.notify()
        await _until(owned, {0: 9, 1: 9})
        duty.cancel()
    assert paths.POLICIES in node_of(None)


async def _until(owned: Owned, lags: dict[int, Any]) -> None:
    while await _lags(owned) != lags:
        await turn()
