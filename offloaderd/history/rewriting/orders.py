"""The order to rewrite a topic's streaming segments as whole ledgers: one writer carries out requests in turn."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from offloaderd.core.aio import Signal
from offloaderd.core.errors import Conflict, Fenced, NotFound, OffloaderError, Transient
from offloaderd.core.model import TopicName
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.port import Create, Replace
from offloaderd.metadata.records import orders
from offloaderd.metadata.records.orders import RollbackOrder
from offloaderd.segment.claim.fence import Fence

Decide = Callable[[RollbackOrder | None], RollbackOrder]

log = structlog.get_logger(__name__)


def extended(to_ledger_id: int, now_ms: int) -> Decide:
    """Return the change that orders ledgers up to that one; an active order never shrinks."""

    def decide(known: RollbackOrder | None) -> RollbackOrder:
        if known is not None and known.active:
            return replace(known, to_ledger_id=max(known.to_ledger_id, to_ledger_id))
        return RollbackOrder(to_ledger_id=to_ledger_id, ordered_ms=now_ms)

    return decide


def taken_back(now_ms: int) -> Decide:
    """Return the change that withdraws the order; one that has ended stays."""

    def decide(known: RollbackOrder | None) -> RollbackOrder:
        if known is None:
            raise NotFound("nothing of this topic was ordered to be rewritten", hint="offloadctl rollback convert")
        return replace(known, ended_ms=max(1, now_ms), stopped=True) if known.active else known

    return decide


@dataclass(slots=True, eq=False)
class _Request:
    """A requested change, and the future of the changed order."""

    decide: Decide
    done: asyncio.Future[RollbackOrder]

    def fail(self, error: OffloaderError) -> None:
        """Answer with an error, unless the caller has left."""
        if not self.done.done():
            self.done.set_exception(error)


class OrderDesk:
    """The recorded order under one claim. Requests are carried out even if their caller leaves."""

    def __init__(self, topic: TopicName, fence: Fence) -> None:
        self.order: RollbackOrder | None = None
        self.changed = Signal()
        self._topic = topic
        self._fence = fence
        self._version: int | None = None
        self._known = False
        self._writing = asyncio.Lock()  # a writer of the node has to know its version
        self._requests: list[_Request] = []
        self._asked = Signal()

    @property
    def active(self) -> bool:
        """Whether there is an order that has not ended."""
        return self.order is not None and self.order.active

    async def load(self) -> None:
        """Read the record. Raises CorruptData, Transient."""
        async with self._writing:
            await self._load()

    async def _load(self) -> None:
        path = paths.rollback_order(self._topic)
        node = await nodes.node(self._fence.store, path)
        self.order = orders.decode_rollback(node.value, path=path) if node is not None else None
        self._version = node.version if node is not None else None
        self._known = True

    async def ask(self, decide: Decide) -> RollbackOrder:
        """Request a change; returns the order. Raises what `decide` does, Transient, Fenced."""
        request = _Request(decide, asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self._asked.notify()
        return await request.done

    async def serve(self) -> None:
        """Carry out requests until cancelled. Raises Fenced."""
        while True:
            while self._requests:
                await self._carry_out(self._requests.pop(0))
            await self._asked.wait()

    async def _carry_out(self, request: _Request) -> None:
        try:
            order = await self.change(request.decide)
        except OffloaderError as error:
            request.fail(error)
            if isinstance(error, Fenced):
                raise
        except BaseException:
            request.fail(_released(self._topic))
            raise
        else:
            if not request.done.done():
                request.done.set_result(order)

    def close(self) -> None:
        """Refuse the requests that were not carried out."""
        for request in self._requests:
            request.fail(_released(self._topic))

    async def change(self, decide: Decide) -> RollbackOrder:
        """Record a change of the order, and return it. Raises what `decide` does, Fenced, Conflict, Transient."""
        async with self._writing:
            if not self._known:
                await self._load()
            after = decide(self.order)
            if after != self.order:
                await self._write(after)
                self.order = after
                self.changed.notify()
        return after

    async def _write(self, order: RollbackOrder) -> None:
        path, value = paths.rollback_order(self._topic), orders.encode_rollback(order)
        version = self._version

        async def recorded() -> bool:
            node = await nodes.node(self._fence.store, path)
            return node is not None and node.value == value

        self._known = False  # unknown until the outcome is read
        if version is None:
            try:
                await self._fence.store.create(paths.rollback(self._topic), b"")
            except Conflict:
                log.debug("rollback.folder_exists", topic=str(self._topic))
        step = Create(path, value) if version is None else Replace(path, value, version)
        await self._fence.settle([step], recorded)
        self._version, self._known = (0 if version is None else version + 1), True


def _released(topic: TopicName) -> Transient:
    return Transient(f"{topic} is being released", hint="ask its next owner; what was ordered stays ordered")
