"""Segments that executors write, as traces: the same steps as the daemon's, up to what is the driver's."""

from __future__ import annotations

import asyncio
from collections import Counter

from offloaderd.core.traces import NO_TRACES
from offloaderd.daemon.settings import load
from offloaderd.spark.jobs.executors import traced as traced_by_settings
from tests.patience import PATIENCE_S
from tests.unit.core.test_traces import facts, traced
from tests.unit.spark.backfill_rig import backfill, map_of, planned

BUCKET = {"OFFLOADERD__OBJECTS__BUCKET": "bucket"}
STEPS = {"segment": 1, "open": 1, "seal": 1, "complete": 1, "verify": 1}


async def test_an_executor_traces_its_segment_up_to_its_word_that_it_is_stored() -> None:
    """One trace a segment, under the segment's id; the root span says that it is history, written by a job."""
    rig = await planned()
    with traced(rig) as seen:
        async with asyncio.timeout(PATIENCE_S):
            await backfill(rig).run()
        found = seen.traces()
    old = [one for one in (await map_of(rig)).segments if one.begin.ledger_id < 6]
    assert set(found) == {one.segment_id for one in old}
    for spans in found.values():
        counts = Counter(span.name for span in spans)
        assert counts.pop("part") >= 1
        assert counts == STEPS
        root = facts(next(span for span in spans if span.name == "segment"))
        assert (root["history"], root["job"], root["method"]) == (True, True, "streaming")


async def test_executors_trace_where_the_settings_say_so() -> None:
    """Off, nothing is opened; on, the collector need not be there."""
    rig = await planned(40)
    context = rig.context(rig.tree.connect(), source=rig.ledgers)
    async with traced_by_settings(load(None, BUCKET), context) as same:
        assert same.upload_context.traces is NO_TRACES
    wanted = {**BUCKET, "OFFLOADERD__TRACING__ENABLED": "true", "OFFLOADERD__TRACING__ENDPOINT": "http://127.0.0.1:9"}
    async with traced_by_settings(load(None, wanted), context) as other:
        assert other.upload_context.traces is not NO_TRACES
        assert other.upload_context.pace is context.upload_context.pace
