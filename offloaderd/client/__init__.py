"""The client library for programs that use a daemon; offloadctl uses nothing else (docs/client.md).

The names of this module are stable; the modules behind it may change. Answers are the messages of
`offloaderd.protocol.v1`, except ReadAnswer.
"""

from offloaderd.client.channel import NotConsecutive, TimedOut, Unreachable, checked_address, translated
from offloaderd.client.client import BlockingClient, DaemonClient
from offloaderd.client.reading import ReadAnswer, Wanted
from offloaderd.client.trust import NotTrusted, Trust
from offloaderd.client.writing import LedgerClosed, Pushed
from offloaderd.core.errors import LedgerUnknown
from offloaderd.core.model import EntryBatch, OfferResult, Position, TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.core.read_options import Goal, ReadPriority, SeekKind, Transactions

__all__ = [
    "BlockingClient",
    "DaemonClient",
    "EntryBatch",
    "Goal",
    "LedgerClosed",
    "LedgerUnknown",
    "NotConsecutive",
    "NotTrusted",
    "OfferResult",
    "Position",
    "Pushed",
    "ReadAnswer",
    "ReadPriority",
    "SeekKind",
    "TimedOut",
    "TopicName",
    "TopicPattern",
    "Transactions",
    "Trust",
    "Unreachable",
    "Wanted",
    "checked_address",
    "translated",
]
