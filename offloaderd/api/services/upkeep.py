"""UpkeepService: garbage collection on request."""

import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from uuid import UUID

from offloaderd.api.context import Context
from offloaderd.core.errors import InvalidInput
from offloaderd.format.parsing import filled
from offloaderd.protocol.v1 import upkeep_pb2, upkeep_pb2_grpc
from offloaderd.upkeep.gc.collector import Collector
from offloaderd.upkeep.gc.findings import Finding


class UpkeepService(upkeep_pb2_grpc.UpkeepServiceServicer):
    """Collects on request; `grace_s` is the grace age if the caller names none."""

    def __init__(self, collector: Collector, *, grace_s: float) -> None:
        self._collector = collector
        self.grace_s = grace_s

    async def Gc(self, request: upkeep_pb2.GcRequest, context: Context) -> AsyncIterator[upkeep_pb2.GcEvent]:
        """Yield findings, then the summary. Raises InvalidInput, and Conflict while another collection runs."""
        grace_s = request.grace_s if request.HasField("grace_s") else self.grace_s
        if not (math.isfinite(grace_s) and grace_s >= 0):
            raise InvalidInput(f"grace_s must be a number of seconds >= 0, not {grace_s}")
        also = frozenset(map(checked_segment, request.also))
        async with aclosing(self._collector.collect(grace_s=grace_s, apply=request.apply, also=also)) as found:
            async for one in found:
                if isinstance(one, Finding):
                    yield upkeep_pb2.GcEvent(find=filled(upkeep_pb2.GcFind, one))
                else:
                    yield upkeep_pb2.GcEvent(summary=filled(upkeep_pb2.GcSummary, one))


def checked_segment(text: str) -> UUID:
    """Parse a segment's id; raises InvalidInput."""
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput(f"not a segment: {text[:80]!r}", hint="write its whole uuid, as in its key") from None
