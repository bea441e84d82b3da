"""What follows when stored segments are found damaged: their ledgers are not to be deleted at the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from offloaderd.errors import Conflict
from offloaderd.offload import grant_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.clock import Clock
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.model import TopicName

log = structlog.get_logger(__name__)


class SourceKeeper:
    """Takes back, or forbids beforehand, the permission to delete ledgers; an operator allows it again."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def keep(self, topic: TopicName, ledger_ids: Sequence[int], reason: str) -> None:
        """Revoke the grants of ledgers, as far as they are not being deleted already. Raises Transient."""
        for ledger_id in ledger_ids:
            try:
                await grant_records.revoke(self._store, topic, ledger_id, reason=reason, now_ms=self._clock.wall_ms())
            except Conflict as error:
                log.warning("ledger.not_kept", topic=str(topic), ledger_id=ledger_id, error=str(error))
