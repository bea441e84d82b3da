"""What a size threshold means: as Pulsar's own command does, and at most so much stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.model import LedgerInfo, Position
from offloaderd.topic.requests import beyond

SIZES = st.lists(st.integers(0, 50), min_size=1, max_size=8)


def ledgers(sizes: list[int], *, is_open: bool) -> list[LedgerInfo]:
    """Make ledgers of these sizes; one of size 0 is empty, of any other it has an entry a byte."""
    last = len(sizes) - 1
    return [
        LedgerInfo(ledger_id=index + 1, closed=index < last or not is_open, entries=size, size_bytes=size)
        for index, size in enumerate(sizes)
    ]


def pulsars(sizes: list[int], threshold: int) -> int | None:
    """Return the ledger before which Pulsar offloads everything, by CmdTopics.findFirstLedgerWithinThreshold."""
    total, previous = 0, len(sizes)
    for ledger_id in range(len(sizes), 0, -1):
        total += sizes[ledger_id - 1]
        if total > threshold:
            return previous
        previous = ledger_id
    return None


@given(SIZES, st.integers(0, 200))
def test_it_is_pulsars_meaning(sizes: list[int], threshold: int) -> None:
    """Everything goes that lies before the position which pulsar-admin would send, and nothing else."""
    found, first_kept = beyond(ledgers(sizes, is_open=True), threshold), pulsars(sizes, threshold)
    with_entries = [index + 1 for index, size in enumerate(sizes[:-1]) if size]
    if first_kept is not None and first_kept < len(sizes):
        # Pulsar sends the first ledger that stays; the one that goes beyond the threshold goes as well.
        going = [one for one in with_entries if one < first_kept]
    else:
        going = with_entries if first_kept is not None else []
    assert found == (Position(going[-1], sizes[going[-1] - 1] - 1) if going else None)


@given(SIZES, st.integers(0, 200), st.booleans())
def test_at_most_the_threshold_stays_and_no_ledger_goes_that_fits(
    sizes: list[int], threshold: int, is_open: bool
) -> None:
    """What stays is no more than the threshold, but for the open ledger; with the next older ledger it would be."""
    infos = ledgers(sizes, is_open=is_open)
    found = beyond(infos, threshold)
    kept = [one.size_bytes for one in infos if found is None or one.ledger_id > found.ledger_id]
    closed = sum(kept[:-1] if is_open else kept)
    assert sum(kept) <= threshold or not closed
    if found is not None:
        assert sum(kept) + infos[found.ledger_id - 1].size_bytes > threshold
        assert infos[found.ledger_id - 1].closed
