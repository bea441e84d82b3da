"""`losses/<ledger id>`: entries that the source deleted before they were offloaded; no reader may skip such a gap.

Nearly every loss ends at the begin of a ledger and is named by that ledger; older releases named all so. A ledger may
have several losses: one after the other, or one of history and one of live entries. Later ones have a longer name.
Readers of losses ignore the names; a deletion needs the name that was read.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from offloaderd.core.model import START, Loss, Position
from offloaderd.format.parsing import halves
from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec


def encode(value: Loss) -> bytes:
    """Return the node's content."""
    positions = halves("after", value.after) | halves("before", value.before)
    return codec.content(records_pb2.LossRecord, value, **positions)


def decode(data: bytes, *, path: str) -> Loss:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.LossRecord, data, path)
    after = Position(record.after_ledger_id, record.after_entry_id)
    if after != START:
        codec.position(path, *after)
    before = codec.position(path, record.before_ledger_id, record.before_entry_id)
    if before <= after:
        codec.corrupt(path, f"a range behind {after}", before)
    return Loss(after, before, record.entries, record.noticed_ms)


def usual(loss: Loss) -> str:
    """Return a loss's name, if no other loss has it."""
    return str(loss.before.ledger_id)


def free(loss: Loss, taken: Collection[str]) -> str:
    """Return the first of a loss's possible names that is not taken."""
    short = usual(loss)
    longer = f"{short}-{loss.before.entry_id}"
    longest = f"{longer}-{loss.after.ledger_id}-{loss.after.entry_id}"
    return next(one for one in (short, longer, longest) if one not in taken or one == longest)


def unusual(losses: Mapping[Loss, str] | Iterable[Loss]) -> Mapping[Loss, str]:
    """Return the names that differ from the usual ones. Losses without names are not recorded yet."""
    names = losses if isinstance(losses, Mapping) else named(losses)
    return MappingProxyType({loss: name for loss, name in names.items() if name != usual(loss)})


def named(losses: Iterable[Loss]) -> dict[Loss, str]:
    """Return names for losses that are not recorded yet."""
    names: dict[Loss, str] = {}
    for loss in losses:
        names[loss] = free(loss, set(names.values()))
    return names
