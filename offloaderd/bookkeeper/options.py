"""How the source reads: paces, patience and limits, as one value."""

from __future__ import annotations

from dataclasses import dataclass

from offloaderd.bookkeeper.metadata import layout
from offloaderd.core.names import managed_ledgers as pulsar_names


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Settings of BookKeeperLedgers; every limit of 0 is none.

    An open ledger's end is asked for every `poll_min_s` while it moves, ever more rarely down to `poll_max_s` while it
    does not. One that stays quiet is not asked at all: its bookies are to tell, by long polls of up to `quiet_poll_s`.
    A read that takes longer than `hedge_s` is sent to a second replica. When no replica gives an entry, all are asked
    `rounds` times more, after pauses from `pause_min_s` on that double. With entries known to be hidden, and nothing
    new for `quiet_s`, the broker is asked if there is an admin API to ask.
    """

    ledgers_root: str = layout.ROOT_DEFAULT
    managed_ledgers_root: str = pulsar_names.ROOT
    poll_min_s: float = 0.2
    poll_max_s: float = 2.0
    quiet_poll_s: float = 120.0
    hedge_s: float = 2.0
    quiet_s: float = 1.0
    rounds: int = 5
    pause_min_s: float = 0.5
    batch_read_bytes: int = 1 << 20
    singles_window: int = 64
    bytes_per_s: float = 0
    requests_per_s: float = 0
    topic_bytes_per_s: float = 0
    topic_requests_per_s: float = 0
