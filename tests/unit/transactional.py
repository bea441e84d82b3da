"""Entries of transactions, as clients and brokers write them, and what a consumer of a topic with them is given."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st

from offloaderd.format.pulsar.transactions import TransactionId
from tests.unit.format.test_pulsar_message import entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

IDS = [TransactionId(1, number) for number in range(4)]


def sent(transaction: TransactionId, content: bytes = b"in it", **fields: Any) -> bytes:  # noqa: ANN401 - what protobuf takes
    """Return a message in a transaction."""
    return entry(content, **_ids(transaction), **fields)


def commit(transaction: TransactionId) -> bytes:
    """Return the marker that commits."""
    return entry(b"", marker_type=21, **_ids(transaction))


def abort(transaction: TransactionId) -> bytes:
    """Return the marker that aborts."""
    return entry(b"", marker_type=22, **_ids(transaction))


def _ids(transaction: TransactionId) -> dict[str, Any]:
    return {"txnid_most_bits": transaction.most_bits, "txnid_least_bits": transaction.least_bits}


class Op(NamedTuple):
    """One entry: of a transaction, or none."""

    kind: str
    number: int = 0

    def payload(self, at: int) -> bytes:
        """Return the entry; its content is its place."""
        content, transaction = str(at).encode(), IDS[self.number]
        match self.kind:
            case "sent":
                return sent(transaction, content)
            case "commit":
                return commit(transaction)
            case "abort":
                return abort(transaction)
            case "replication":
                return entry(b"", marker_type=12)
            case _:
                return entry(content)


def consumed(ops: Sequence[Op]) -> tuple[list[int], int | None]:
    """Return which entries a consumer is given, and before which one it waits; looked up for each by itself."""

    def outcome(at: int) -> str | None:
        number = ops[at].number
        if Op("abort", number) in ops[:at]:
            return "abort"
        return next((op.kind for op in ops[at:] if op.number == number and op.kind in {"commit", "abort"}), None)

    open_at = [at for at, op in enumerate(ops) if op.kind == "sent" and outcome(at) is None]
    end = min(open_at, default=len(ops))
    given_out = [
        at for at, op in enumerate(ops[:end]) if op.kind == "plain" or (op.kind == "sent" and outcome(at) == "commit")
    ]
    return given_out, end if open_at else None


def sensible(ops: list[Op]) -> list[Op]:
    """Leave out what no coordinator does: anything of a transaction behind its commit, and a second marker."""
    found: list[Op] = []
    for op in ops:
        ended = {one.kind for one in found if one.number == op.number} & {"commit", "abort"}
        if op.kind in {"commit", "abort"} and ended:
            continue
        if op.kind == "sent" and "commit" in ended:
            continue
        found.append(op)
    return found


def place(at: int, ledgers: Sequence[Sequence[bytes]]) -> tuple[int, int]:
    """Return the ledger and the entry of the topic's entry `at`."""
    for ledger_id, payloads in enumerate(ledgers):
        if at < len(payloads):
            return ledger_id, at
        at -= len(payloads)
    raise IndexError(at)


def cut_at(payloads: Sequence[bytes], cuts: Iterable[int]) -> list[Sequence[bytes]]:
    """Return the ledgers that a row of entries has, with an end at each cut."""
    bounds = [0, *sorted(cut for cut in cuts if cut < len(payloads)), len(payloads)]
    return [payloads[low:high] for low, high in pairwise(bounds)]


OPS = st.lists(
    st.builds(Op, st.sampled_from(["plain", "sent", "sent", "commit", "abort", "replication"]), st.integers(0, 3)),
    min_size=1,
    max_size=14,
).map(sensible)
