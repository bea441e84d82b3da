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
from offloaderd.metadata.port import MetadataStore
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
        """Return the ledgers. The error of a source that does not answer is part of the answer. Raises Transient."""
        topic = TopicName.parse(request.topic)
        away_for = await metadata_error(self.metadata)
        known = self.engine.known(topic) if away_for else await self.engine.topic_map(topic)
        if known is None:
            raise away(away_for)
        topic_map = known
        source, failure = await self._listed(topic, ANSWERS_S if away_for else None)
        grants = {} if away_for else await grant_records.load_all(self.metadata, topic)
        base = topic_map.base
        rows, token = page(request, ledger_rows(topic_map, source, grants), lambda one: f"{one.ledger_id:020}")
        return filled(
            pb.ListLedgersResponse,
            ledgers=rows,
            next_page_token=token,
            floor=base.position if base is not None else None,
            deleted_segments=base.segments if base is not None else 0,
            deleted_bytes=base.object_bytes if base is not None else 0,
            source_error=failure,
            metadata_error=away_for,
        )

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
        rows = ledger_rows(await self.engine.topic_map(topic), source, {})
        if not failure and all(row.ledger_id != ledger_id for row in rows):
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
