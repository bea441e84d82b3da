"""What status says of damaged copies is true a moment after somebody has said so, whoever it was, also of a sleeper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import OutcomeUnknown, Transient
from offloaderd.metadata import paths
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.testing.faults import FaultyMetadata
from offloaderd.upkeep.grants import records as grant_records
from offloaderd.upkeep.grants.grants import Grants
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, payloads, until, until_offloaded
from tests.unit.upkeep.test_grants import OPTIONS

if TYPE_CHECKING:
    from offloaderd.fleet.engine import Engine
    from offloaderd.topic.offloader import TopicOffloader

LATE = OPTIONS.model_copy(update={"interval_s": 86_400.0})
"""An owner that is told of nothing looks tomorrow."""


def rig_of(*, suspend_after_s: float = 0.0, grants: bool = True) -> Rig:
    """A rig whose topic is looked after by the duty."""
    rig = Rig(suspend_after_s=suspend_after_s)
    rig.ledgers = memory_ledgers(rig.clock)

    async def duty(offloader: TopicOffloader) -> None:
        context = offloader._context
        await Grants(
            context,
            None,
            LATE.model_copy(update={"enabled": grants}),
            PolicyResolver(context.metadata, []),
            daemon_id="one",
        ).run(offloader)

    rig.duties = {"grants": duty}
    return rig


async def offloaded(rig: Rig, engine: Engine) -> None:
    """Have something committed."""
    assert rig.ledgers is not None
    topic = await enabled(engine)
    last = await rig.ledgers.append(TOPIC, payloads(10))
    await topic.request_roll()
    await until_offloaded(topic, last)


def shown(engine: Engine) -> tuple[int, ...]:
    """Return what status says."""
    (status,) = engine.statuses()
    return status.damaged_ledgers


async def revoke(rig: Rig, ledger_id: int) -> None:
    """As another daemon does, or a job."""
    await grant_records.revoke(rig.tree.connect(), TOPIC, ledger_id, reason="damaged", now_ms=5, damaged=True)


@pytest.mark.parametrize("suspend_after_s", [0.0, 0.05])
@pytest.mark.parametrize("grants", [True, False])
async def test_what_any_check_found_damaged_shows_at_once(suspend_after_s: float, *, grants: bool) -> None:
    """Also of a topic that sleeps, where no grants are given, and when it is allowed again."""
    rig = rig_of(suspend_after_s=suspend_after_s, grants=grants)
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        for ledger_id in (0, 1):
            if suspend_after_s:
                await until(lambda: engine.find(TOPIC) is None)
            await revoke(rig, ledger_id)
            await until(lambda: shown(engine) == tuple(range(ledger_id + 1)))  # noqa: B023 - awaited here
        assert rig.metrics.damaged_ledgers._values == {str(TOPIC): 2}
        for ledger_id in (0, 1):
            await grant_records.allow(rig.tree.connect(), TOPIC, ledger_id)
        await until(lambda: shown(engine) == ())
        assert await rig.tree.connect().children(paths.GRANTS_CHANGED) == []


async def test_an_owner_that_cannot_be_told_looks_later() -> None:
    """The grant is revoked all the same, and the owner sees that when it looks for another reason."""
    rig = rig_of()
    async with rig.engine() as engine:
        await offloaded(rig, engine)
    store = rig.tree.connect()
    create = store.create

    async def failing(path: str, value: bytes, *, ephemeral: bool = False) -> None:
        if path.startswith(paths.GRANTS_CHANGED):
            raise Transient("it does not answer")
        await create(path, value, ephemeral=ephemeral)

    store.create = failing  # type: ignore[method-assign]
    await grant_records.revoke(store, TOPIC, 0, reason="damaged", now_ms=5, damaged=True)
    async with rig.engine() as engine:
        await until(lambda: bool(engine.statuses()) and shown(engine) == (0,))


async def test_a_topic_that_nobody_works_on_keeps_one_word_of_it() -> None:
    """However many of its ledgers are revoked meanwhile; who takes it up looks anyway."""
    rig = rig_of()
    async with rig.engine() as engine:
        await offloaded(rig, engine)
    store = rig.tree.connect()
    for ledger_id in (0, 1):
        found = await grant_records.revoke(store, TOPIC, ledger_id, reason="damaged", now_ms=5, damaged=True)
        assert found.damaged
    assert len(await store.children(paths.GRANTS_CHANGED)) == 1
    assert await grant_records.damaged(store, TOPIC) == (0, 1)
    async with rig.engine() as engine:
        await until(lambda: bool(engine.statuses()) and shown(engine) == (0, 1))


async def test_a_word_that_nobody_took_away_keeps_no_later_one_from_its_owner() -> None:
    """It was said while nobody had the topic, and the folder's list of words is the same after the next one."""
    rig = rig_of()
    async with rig.engine() as engine:
        await offloaded(rig, engine)
    await revoke(rig, 0)
    async with rig.engine() as engine:
        await until(lambda: bool(engine.statuses()) and shown(engine) == (0,))
        assert len(await rig.tree.connect().children(paths.GRANTS_CHANGED)) == 1
        await revoke(rig, 1)
        await until(lambda: shown(engine) == (0, 1))


async def test_a_word_whose_taking_was_not_answered_is_heeded() -> None:
    """It is gone then, and nobody else says it again."""
    rig = rig_of()
    lost = [OutcomeUnknown("no answer")]

    def plan(operation: str, key: str, when: str) -> Exception | None:
        taken = (operation, when) == ("delete", "after") and key.startswith(paths.GRANTS_CHANGED)
        return lost.pop() if taken and lost else None

    async with rig.engine(metadata=FaultyMetadata(rig.tree.connect(), plan)) as engine:
        await offloaded(rig, engine)
        await revoke(rig, 0)
        await until(lambda: shown(engine) == (0,))
    assert not lost


async def test_a_node_that_names_no_topic_hides_no_word() -> None:
    """Whatever made it; the words of topics are heeded all the same."""
    rig = rig_of()
    store = rig.tree.connect()
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        await store.create(f"{paths.GRANTS_CHANGED}/!%2F", b"")
        await revoke(rig, 0)
        await until(lambda: shown(engine) == (0,))
