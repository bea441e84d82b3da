"""Entries built for tests tell where they belong."""

from __future__ import annotations

import json

from offloaderd.testing import batch, flights, payloads


def test_payloads_depend_on_their_position() -> None:
    """No two positions share their bytes, and the same position always has the same."""
    built = {one for ledger in range(3) for one in payloads(100, 16, ledger_id=ledger)}
    assert len(built) == 300
    assert payloads(3, 100, ledger_id=1, first_entry_id=5)[1] == payloads(7, 100, ledger_id=1)[6]
    assert [len(one) for one in payloads(2, 0)] == [0, 0]


def test_a_batch_holds_the_payloads_of_its_range() -> None:
    """The pieces of a batch are those of the positions it names."""
    built = batch(4, 10, 3, 50)
    assert (str(built.first), str(built.last), built.payload_bytes()) == ("4:10", "4:12", 150)
    assert built.payloads == payloads(3, 50, ledger_id=4, first_entry_id=10)


def test_flights_are_json() -> None:
    """Each is an object that carries its number."""
    assert [json.loads(one)["flight"] for one in flights(3, first=7)] == [7, 8, 9]
