"""RetentionService: the state of a topic's ledgers, and deletions here and at the source."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from offloaderd.api.calls import ANSWERS_S, Context, away, metadata_error
from offloaderd.api.paging import page
from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidInput, NotFound, OffloaderError
from offloaderd.core.model import LEDGER_ID_MAX, LedgerInfo, TopicName
from offloaderd.fleet.engine import Engine
from offloaderd.format.parsing import filled
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata import nodes, paths, pieces
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.deletion import decode_floor
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.protocol.v1 import retention_pb2 as pb
from offloaderd.protocol.v1 import retention_pb2_grpc
from offloaderd.upkeep.grants import records as grant_records
from offloaderd.upkeep.retention import Retention, deletion_plan, ledger_rows

LEDGERS_MAX = 10_000
"""Ledgers in one request."""


@dataclass(eq=False)
class RetentionService(retention_pb2_grpc.RetentionServiceServicer):
    """Answers from metadata and source; deletes through the topic's owner."""

    engine: Engine
    retention: Retention
    metadata: MetadataStore
    source: LedgerSource | None
    clock: Clock

    async def ListLedgers(self, request: pb.ListLedgersRequest, context: Context) -> pb.ListLedgersResponse:
        """Return the ledgers; a page reads what it shows. Raises Transient, CorruptData.

        The error of a source that does not answer is part of the answer.
        """
        topic = TopicName.parse(request.topic)
        away_for, offloader = await metadata_error(self.metadata), self.engine.find(topic)
        held = offloader.map if offloader is not None else self.engine.known(topic) if away_for else None
        if away_for and held is None:
            raise away(away_for)
        source, failure = await self._listed(topic, ANSWERS_S if away_for else None)
        in_tier = await self._in_tier(topic, held)
        known = sorted(in_tier.union(info.ledger_id for info in source or ()))
        shown, token = page(request, known, lambda one: f"{one:020}")
        if held is not None:
            base, stored = held.base, {one: held.contexts[one] for one in shown if one in held.contexts}
        else:
            base = await nodes.record(self.metadata, paths.floor(topic), decode_floor)
            stored = await nodes.contexts(self.metadata, topic, only=[one for one in shown if one in in_tier])
        contexts = {one: pieces.joined(context, paths.ledger(topic, one)) for one, context in stored.items()}
        grants = {} if away_for else await grant_records.load_all(self.metadata, topic, only=shown)
        return filled(
            pb.ListLedgersResponse,
            ledgers=ledger_rows(shown, contexts, source, grants, newest=max(in_tier, default=-1)),
            next_page_token=token,
            floor=base.position if base is not None else None,
            deleted_segments=base.segments if base is not None else 0,
            deleted_bytes=base.object_bytes if base is not None else 0,
            source_error=failure,
            metadata_error=away_for,
        )

    async def _in_tier(self, topic: TopicName, held: TopicMap | None) -> frozenset[int]:
        """Return the ledgers with offloaded entries, by the map in memory, else by the names of their nodes."""
        return frozenset(held.contexts if held is not None else await nodes.ledger_ids(self.metadata, topic))

    async def _listed(self, topic: TopicName, within_s: float | None) -> tuple[Sequence[LedgerInfo] | None, str]:
        """Return the source's ledgers, None if unknown, and the reason."""
        if self.source is None:
            return None, ""
        try:
            async with asyncio.timeout(within_s):
                return await self.source.ledgers(topic), ""
        except TimeoutError:
            return None, f"no answer within {within_s:g} s"
        except NotFound:
            return (), ""
        except OffloaderError as error:
            return None, str(error)

    async def DeleteLedgers(self, request: pb.DeleteLedgersRequest, context: Context) -> pb.DeleteLedgersResponse:
        """Mark ledgers deleted. Raises InvalidInput, NotFound, Conflict (at the source, or another daemon's topic)."""
        topic = TopicName.parse(request.topic)
        if not 0 < len(request.ledger_ids) <= LEDGERS_MAX:
            raise InvalidInput(f"name 1 to {LEDGERS_MAX} ledgers, not {len(request.ledger_ids)}")
        ledger_ids = [checked_ledger(ledger_id) for ledger_id in request.ledger_ids]
        offloader = await self.engine.owned(topic)
        plan = deletion_plan(offloader.map, ledger_ids)
        marked = await self.retention.mark(offloader, ledger_ids, dry_run=request.dry_run)
        return filled(pb.DeleteLedgersResponse, plan, marked=marked)

    async def RevokeGrant(self, request: pb.RevokeGrantRequest, context: Context) -> pb.RevokeGrantResponse:
        """Revoke a grant, or forbid it beforehand.

        Raises InvalidInput, NotFound for an unknown ledger, Conflict once the source deletes, OutcomeUnknown,
        Transient. While the source does not answer, a ledger that it may have counts as known.
        """
        topic, ledger_id = TopicName.parse(request.topic), checked_ledger(request.ledger_id)
        source, failure = await self._listed(topic, ANSWERS_S)
        offloader = self.engine.find(topic)
        in_tier = await self._in_tier(topic, offloader.map if offloader is not None else None)
        if not failure and ledger_id not in in_tier.union(info.ledger_id for info in source or ()):
            raise NotFound(
                f"{topic} has no ledger {ledger_id}, neither offloaded nor at the source",
                hint=f"`offloadctl ledgers list {topic}` shows them; nothing was recorded",
            )
        found = await grant_records.revoke(
            self.metadata, topic, ledger_id, reason=request.reason, now_ms=self.clock.wall_ms()
        )
        return filled(pb.RevokeGrantResponse, grant=found)

    async def AllowGrant(self, request: pb.AllowGrantRequest, context: Context) -> pb.AllowGrantResponse:
        """Lift a revocation. Raises InvalidInput, NotFound when there is none, OutcomeUnknown, Transient."""
        topic, ledger_id = TopicName.parse(request.topic), checked_ledger(request.ledger_id)
        await grant_records.allow(self.metadata, topic, ledger_id)
        return pb.AllowGrantResponse()


def checked_ledger(ledger_id: int) -> int:
    """Return a valid ledger id. Raises InvalidInput."""
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise InvalidInput(f"{ledger_id} is no ledger id", hint="ledger ids are 0 to 2^63-1")
    return ledger_id
