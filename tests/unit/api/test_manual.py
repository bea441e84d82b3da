"""Offloading by hand over AdminService, with running engines: what is answered, and that every daemon says the same."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from offloaderd.api import manual_offload as manual
from offloaderd.api.admin import AdminService
from offloaderd.core.errors import Conflict, CorruptData, InvalidInput, NotFound, Transient
from offloaderd.core.model import EntryBatch, OfferResult, OffloadMethod, Position, TopicName
from offloaderd.core.names.patterns import of_topic
from offloaderd.metadata import paths
from offloaderd.policy.records import TopicPolicy, decode_policy, encode_policy
from offloaderd.protocol.v1 import admin_pb2, common_pb2
from offloaderd.topic.requests import Why
from offloaderd.topic.status import TopicStatus
from tests.unit.fleet.test_engine import appended
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, offloader_of, payloads, until, until_offloaded
from tests.unit.topic.test_triggers import BY_HAND, OTHER, Gate, ledger_rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.fleet.engine import Engine
    from offloaderd.testing.memory.metadata import MemoryMetadata

Progress = admin_pb2.OffloadProgress


@dataclass
class Caller:
    """The context of a call."""

    address: str = "ipv4:10.0.0.7:5"

    def peer(self) -> str:
        """Return where it comes from."""
        return self.address


CALLER: Any = Caller()


@dataclass
class Daemon:
    """A daemon's service with its engine."""

    store: MemoryMetadata
    engine: Engine
    service: AdminService

    async def offload(self, *, topic: str = str(TOPIC), **wanted: Any) -> list[Progress]:  # noqa: ANN401 - fields of the request
        """Ask for an offload; returns all reports."""
        if isinstance(to := wanted.pop("to", None), Position):
            wanted["to"] = common_pb2.Position(ledger_id=to.ledger_id, entry_id=to.entry_id)
        request = admin_pb2.OffloadRequest(topic=topic, **wanted)
        return [progress async for progress in self.service.Offload(request, CALLER)]

    async def status(self, *, wait: bool = False, topic: TopicName = TOPIC) -> Progress:
        """Ask what became of it; returns the last report."""
        request = admin_pb2.OffloadStatusRequest(topic=str(topic), wait=wait)
        return [progress async for progress in self.service.OffloadStatus(request, CALLER)][-1]


@asynccontextmanager
async def daemon(rig: Rig, name: str = "one", *, push_only: bool = False) -> AsyncIterator[Daemon]:
    """Run a daemon."""
    store = rig.tree.connect()
    async with rig.engine(name, metadata=store, push_only=push_only) as engine:
        service = AdminService(
            engine=engine,
            metadata=store,
            source=None if push_only else rig.ledgers,
            snapshot=None,  # type: ignore[arg-type] # only Status asks it
        )
        yield Daemon(store, engine, service)


def at(position: Position | None) -> common_pb2.Position:
    """Return a position as a message."""
    assert position is not None
    return common_pb2.Position(ledger_id=position.ledger_id, entry_id=position.entry_id)


async def test_what_was_said_right_before_a_request_counts() -> None:
    """The owner reads the policy again: it may hear of a change only later, and would go by what held before."""
    rig = ledger_rig(BY_HAND)
    everything = await appended(rig, payloads(45))
    async with daemon(rig) as one:
        topic = await enabled(one.engine)
        path = paths.policy(TOPIC)
        node = await one.store.get(path)
        said = replace(decode_policy(node.value, path=path), method=OffloadMethod.NONE)
        await one.store.replace(path, encode_policy(said), node.version)  # and nobody is told
        with pytest.raises(Conflict, match="method none"):
            await one.offload(to=everything[25][0])
        assert topic.policy.method is OffloadMethod.NONE


async def test_a_request_is_followed_to_its_end() -> None:
    """Reports say what is left and what it is about, the last one when it was done; the status says so afterwards."""
    rig = ledger_rig(BY_HAND)
    gate = Gate(rig)
    everything = await appended(rig, payloads(45))
    async with daemon(rig) as one:
        await enabled(one.engine)
        (first,) = await one.offload(to=everything[25][0])
        assert (first.outcome, first.done, first.remaining_entries, first.remaining_bytes) == (
            "running",
            False,
            20,
            2000,
        )
        assert (first.target, first.wanted) == (at(everything[19][0]), f"everything up to {everything[25][0]}")
        assert (first.asked_by, first.reason, first.method) == ("ipv4:10.0.0.7:5", str(Why.WHOLE), "ledger-based")
        assert [(take.last_entry_id, take.payload_bytes, take.due) for take in first.plan] == [(9, 1000, False)] * 2
        await until(lambda: bool(gate.begun))
        running = await one.status()
        assert (running.outcome, running.segment_entries > 0, running.segment_id != "") == ("running", True, True)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(one.status(wait=True))
            gate.open.set()
        last = waiting.result()
        assert (last.outcome, last.done, last.remaining_entries) == ("done", True, 0)
        assert last.offloaded == last.target == at(everything[19][0])
        assert last.asked_ms <= last.done_ms
        assert not last.HasField("stood")
        (again,) = await one.offload(to=everything[5][0], wait=True)
        assert (again.outcome, again.reason, again.done) == ("nothing", str(Why.OFFLOADED), True)


async def test_a_request_that_is_included_in_another_one_does_not_hide_it() -> None:
    """The one that goes further stays on record while it is under way; one that goes beyond takes its place."""
    rig = ledger_rig(BY_HAND)
    gate = Gate(rig)
    everything = await appended(rig, payloads(45))
    async with daemon(rig) as one:
        topic = await enabled(one.engine)
        await one.offload(to=everything[19][0])
        assert (await one.offload(to=everything[3][0]))[0].outcome == "nothing"
        await one.offload(to=everything[9][0])
        assert (await one.status()).wanted == f"everything up to {everything[19][0]}"
        await one.offload()
        assert (await one.status()).wanted == "everything"
        gate.open.set()
        await until_offloaded(topic, everything[39][0])
        assert (await one.status()).outcome == "done"
        assert (await one.offload())[0].reason == str(Why.OPEN)
        found = await one.status()
        assert (found.outcome, found.reason, found.HasField("target")) == ("nothing", str(Why.OPEN), False)


async def test_a_dry_run_changes_nothing() -> None:
    """It says what would go; nothing is begun and nothing noted."""
    rig = ledger_rig(BY_HAND)
    everything = await appended(rig, payloads(45))
    async with daemon(rig) as one:
        topic = await enabled(one.engine)
        (found,) = await one.offload(size_threshold=1500, dry_run=True)
        assert (found.outcome, found.done, found.target) == ("planned", True, at(everything[29][0]))
        assert (found.remaining_entries, found.remaining_bytes, len(found.plan)) == (30, 3000, 3)
        (found,) = await one.offload(size_threshold=1 << 40, dry_run=True)
        assert (found.outcome, found.reason, len(found.plan)) == ("nothing", str(Why.THRESHOLD), 0)
        assert topic.requests.now().seal_to is None
        found = await one.status()
        assert (found.outcome, found.reason, found.wanted) == ("nothing", str(Why.NOT_DUE), "")


async def test_without_a_request_the_status_says_what_goes_by_itself() -> None:
    """What is due is running, and can be waited for; what is left then is told."""
    rig = ledger_rig(replace(BY_HAND, threshold_bytes=1500))
    gate = Gate(rig)
    everything = await appended(rig, payloads(45))
    async with daemon(rig) as one:
        await enabled(one.engine)
        found = await one.status()
        assert (found.outcome, found.wanted, found.asked_ms) == ("running", "", 0)
        assert found.target == at(everything[29][0])  # of four closed ledgers the newest one stays
        gate.open.set()
        assert (await one.status(wait=True)).outcome == "done"
        found = await one.status()
        assert (found.outcome, found.reason) == ("nothing", str(Why.NOT_DUE))


async def test_a_method_that_takes_nothing_is_told() -> None:
    """A request is refused, a dry run and the status say why."""
    rig = ledger_rig(replace(BY_HAND, method=OffloadMethod.NONE))
    await appended(rig, payloads(15))
    async with daemon(rig) as one:
        await enabled(one.engine)
        with pytest.raises(Conflict, match="method none"):
            await one.offload()
        assert (await one.offload(dry_run=True))[0].reason == str(Why.NONE)
        found = await one.status()
        assert (found.outcome, found.reason) == ("nothing", str(Why.NONE))


async def test_another_daemon_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does not own the topic knows the request, how far it is and whom to ask; it can be waited for there."""
    monkeypatch.setattr(manual, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(manual, "ELSEWHERE_S", 0.01)
    rig = ledger_rig(BY_HAND)
    gate = Gate(rig)
    everything = await appended(rig, payloads(25))
    async with daemon(rig, "one") as one, daemon(rig, "two") as two:
        await one.engine.select(of_topic(TOPIC), TopicPolicy(enabled=True))
        await until(lambda: one.engine.find(TOPIC) is not None or two.engine.find(TOPIC) is not None)
        mine, other = (one, two) if one.engine.find(TOPIC) is not None else (two, one)
        found = await other.status()
        assert (found.outcome, found.done, found.owner_address) == ("unknown", True, f"{found.owner}:1")
        with pytest.raises(Conflict, match="is owned by daemon"):
            await other.offload()
        await mine.offload()
        found = await other.status()
        assert (found.outcome, found.target, found.wanted) == ("running", at(everything[19][0]), "everything")
        assert (found.owner_address, found.remaining_entries) == (f"{found.owner}:1", 0)
        assert found.message == f"daemon {found.owner} works on it, and knows how much is left"
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(other.status(wait=True))
            gate.open.set()
        assert (waiting.result().outcome, waiting.result().offloaded) == ("done", at(everything[19][0]))


async def test_a_waiting_call_outlives_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is claimed again in the middle, with a request that is under way; whoever waits sees its end."""
    monkeypatch.setattr(manual, "HEARTBEAT_S", 0.01)
    rig = ledger_rig(BY_HAND)
    gate = Gate(rig)
    everything = await appended(rig, payloads(25))
    async with daemon(rig) as one:
        topic = await enabled(one.engine)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(one.offload(wait=True))
            await until(lambda: bool(gate.begun))
            one.store.expire()
            await until(lambda: one.engine.find(TOPIC) not in {None, topic})
            gate.open.set()
        assert waiting.result()[-1].outcome == "done"
        assert (await offloader_of(one.engine)).offloaded == everything[19][0]


async def test_a_topic_that_is_disabled_fails_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits is told, and so is who asks later; enabled again it goes on."""
    monkeypatch.setattr(manual, "HEARTBEAT_S", 0.01)
    rig = ledger_rig(BY_HAND)
    gate = Gate(rig)
    everything = await appended(rig, payloads(25))
    async with daemon(rig) as one:
        topic = await enabled(one.engine)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(one.offload(wait=True))
            await until(lambda: bool(gate.begun))
            group.create_task(one.engine.deselect(of_topic(TOPIC)))
            await until(lambda: topic.stopping)
            gate.open.set()
        assert waiting.result()[-1].outcome == "failed"
        found = await one.status()
        assert (found.outcome, "not enabled any more" in found.reason) == ("failed", True)
        with pytest.raises(NotFound, match="not enabled"):
            await one.offload()
        topic = await enabled(one.engine)
        await until_offloaded(topic, everything[19][0])
        assert (await one.status()).outcome == "done"


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"to": Position(1 << 40, 0)}, "beyond the end"),
        ({"to": Position(0, -3)}, "out of range"),
        ({"size_threshold": -1}, "threshold of -1 bytes"),
        ({"size_threshold": 0, "to": Position(0, 0)}, "exclude each other"),
        ({"topic": "a/b"}, "topic"),
        ({"topic": ""}, "topic"),
    ],
)
async def test_what_cannot_be_meant_is_refused(wanted: dict[str, Any], says: str) -> None:
    """By a dry run as well, and nothing is noted."""
    rig = ledger_rig(BY_HAND)
    await appended(rig, payloads(25))
    async with daemon(rig) as one:
        await enabled(one.engine)
        for dry_run in (False, True):
            with pytest.raises(InvalidInput, match=says):
                await one.offload(**wanted, dry_run=dry_run)
        assert (await one.status()).wanted == ""


async def test_topics_that_are_not_offloaded() -> None:
    """Unknown, known but not enabled, and partitioned ones are told apart, by both calls."""
    rig = ledger_rig(BY_HAND)
    await appended(rig, payloads(5))
    async with daemon(rig) as one:
        for topic, says in ((OTHER, "unknown topic"), (TOPIC, "is not offloaded")):
            with pytest.raises(NotFound, match="not enabled"):
                await one.offload(topic=str(topic))
            with pytest.raises(NotFound, match=says):
                await one.status(topic=topic)
        await rig.tree.connect().create(paths.policy(OTHER), encode_policy(TopicPolicy(partitioned=True)))
        with pytest.raises(InvalidInput, match="name a partition"):
            await one.offload(topic=str(OTHER))
        with pytest.raises(InvalidInput, match="name a partition"):
            await one.status(topic=OTHER)


async def test_a_topic_that_is_only_pushed() -> None:
    """There are no ledgers to plan with: everything can be asked for, a size threshold cannot."""
    rig = Rig(policy=replace(BY_HAND, method=OffloadMethod.STREAMING))
    async with daemon(rig, push_only=True) as one:
        topic = await enabled(one.engine)
        assert (await one.offload(wait=True))[-1].reason == str(Why.EMPTY)
        with pytest.raises(InvalidInput, match="sizes of its ledgers are unknown"):
            await one.offload(size_threshold=10)
        assert topic.offer(EntryBatch(4, 0, payloads(7))) is OfferResult.ACCEPTED
        (found,) = await one.offload(dry_run=True)
        assert (found.outcome, found.remaining_entries, found.target) == ("planned", 7, at(Position(4, 6)))
        with pytest.raises(InvalidInput, match="is not one of"):
            await one.offload(to=Position(3, 0))
        last = (await one.offload(to=Position(4, 3), wait=True))[-1]
        assert (last.outcome, last.offloaded) == ("done", at(Position(4, 6)))


@pytest.mark.parametrize(("daemon_bytes_max", "outcome"), [(0, "nothing"), (1 << 30, "running")])
async def test_history_that_goes_first_is_told(daemon_bytes_max: int, outcome: str) -> None:
    """A job has to do what is too much for the daemon, and live segments wait; a request includes it all."""
    rig = Rig(
        policy=replace(BY_HAND, method=OffloadMethod.STREAMING),
        history_bytes_max=daemon_bytes_max,
    )
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=10)
    Gate(rig)
    everything = await appended(rig, payloads(25))
    async with daemon(rig) as one:
        await enabled(one.engine)
        found = await one.status()
        assert (found.outcome, found.reason) == (outcome, str(Why.HISTORY) if outcome == "nothing" else "")
        (found,) = await one.offload()
        assert (found.outcome, found.remaining_entries, found.target) == ("running", 25, at(everything[24][0]))
        if outcome == "running":
            rig.store.open.set()  # type: ignore[attr-defined]


async def test_a_topic_that_is_stalled_fails_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an error that does not pass by itself; one that may pass is waited for."""
    rig = ledger_rig(BY_HAND)
    everything = await appended(rig, payloads(25))
    Gate(rig)
    async with daemon(rig) as one:
        await enabled(one.engine)
        await one.offload()
        for kind, outcome in (("transient", "running"), ("other", "failed")):
            status = TopicStatus(topic=TOPIC, state="stalled", stalled_reason="torn", stalled_class=kind)
            with monkeypatch.context() as patched:
                patched.setattr(one.engine, "status", lambda _, status=status: status)
                patched.setattr(one.engine, "find", lambda _: None)
                found = await one.status()
            assert (found.outcome, found.target) == (outcome, at(everything[19][0]))
            assert found.reason == ("torn" if outcome == "failed" else str(Why.OPEN))
        rig.store.open.set()  # type: ignore[attr-defined]


async def test_a_record_that_cannot_be_read_is_told_and_replaced() -> None:
    """The status fails as corrupt data, a new request is noted in its place."""
    rig = ledger_rig(BY_HAND)
    everything = await appended(rig, payloads(15))
    async with daemon(rig) as one:
        await rig.tree.connect().create(paths.asked(TOPIC), b"\xff")
        topic = await enabled(one.engine)
        with pytest.raises(CorruptData):
            await one.status()
        await one.offload()
        await until_offloaded(topic, everything[9][0])
        assert (await one.status()).outcome == "done"


async def test_a_topic_that_is_being_claimed_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that was enabled a moment ago is no error; one that nobody claims is, in the end."""
    monkeypatch.setattr(manual, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(manual, "CLAIM_S", 0.05)
    rig = ledger_rig(BY_HAND)
    await appended(rig, payloads(15))
    async with daemon(rig) as one:
        owned = one.engine.owned

        async def nobody(topic: TopicName) -> NoReturn:
            raise Transient(f"{topic} has no owner yet")

        monkeypatch.setattr(one.engine, "owned", nobody)
        await enabled(one.engine)
        with pytest.raises(Transient, match="no owner yet"):
            await one.offload()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(one.offload())
            await asyncio.sleep(0.02)  # noqa: TID251 - time passes while the claim is waited for
            monkeypatch.setattr(one.engine, "owned", owned)
        assert waiting.result()[0].outcome == "running"
