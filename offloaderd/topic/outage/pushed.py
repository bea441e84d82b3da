"""Checks that what is pushed to a topic with a ledger source is of a ledger that the source knows.

The source is the authority: what it does not have can neither be read again after a loss of memory nor be told from a
mistake of the pusher, and would wait in memory for good. A broker may push a ledger in the moment in which it made it,
so the source is asked again, at once and at each of its changes, for a moment before a push is refused.
"""

from offloaderd.core.clock import Clock
from offloaderd.core.errors import LedgerUnknown
from offloaderd.core.model import Edge, EntryBatch
from offloaderd.topic.memory.buffer import TailingBuffer
from offloaderd.topic.tailer import Tailer

APPEARS_S = 5.0
"""How long a pushed ledger may take to show up in the source. Its list is watched: in most cases it is a moment."""


async def check(tailer: Tailer | None, buffer: TailingBuffer, batch: EntryBatch, clock: Clock) -> None:
    """Return once the source knows the ledger of a batch that comes next. Raises LedgerUnknown, Transient."""
    if tailer is None or buffer.refusing or not buffer.expects(batch) or _has(tailer, batch):
        return
    until_s = clock.monotonic() + APPEARS_S
    await tailer.refresh()
    while not _has(tailer, batch):
        left_s = until_s - clock.monotonic()
        if left_s <= 0:
            raise _unknown(tailer, batch)
        await tailer.woken(left_s)
        await tailer.refresh()


def _has(tailer: Tailer, batch: EntryBatch) -> bool:
    """Say whether the source has these entries, or may get them: of an open ledger it may know a part only."""
    info = tailer.chain.ledgers.get(batch.ledger_id)
    if info is None:
        return False
    grows = not info.closed and (tailer.edge is None or tailer.edge.edge is not Edge.EXACT)
    return grows or batch.last_entry_id < info.entries


def _unknown(tailer: Tailer, batch: EntryBatch) -> LedgerUnknown:
    if batch.ledger_id in tailer.chain.ledgers:
        said = f"the ledger source of {tailer.topic} has no entry {batch.last}"
    else:
        said = f"the ledger source of {tailer.topic} knows no ledger {batch.ledger_id}"
    return LedgerUnknown(
        f"{said}: entries of it are not taken",
        hint="append to a daemon with a ledger store of its own (`offloadctl produce`, `append`); push entries that no "
        "source has to a daemon with ledgers.kind = none",
    )
