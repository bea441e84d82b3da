"""Rates: each name its own, whatever names others come under."""

from __future__ import annotations

import pytest

from offloaderd.access import callers
from offloaderd.access.callers import CallRate, network_of
from offloaderd.testing.clock import FakeClock


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        ("ipv4:192.0.2.1:5000", "192.0.2.1"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:5000", "2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2::9]:5000", "2001:db8:1:2::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", "fe80::/64"),
        ("ipv6:%5B::ffff:192.0.2.1%5D:5000", "192.0.2.1"),
        ("http:2001:db8:1:2::9:0", "2001:db8:1:2::/64"),
        ("http:192.0.2.1:0", "192.0.2.1"),
        ("unix:/run/x:0", "unix:/run/x"),
        ("", ""),
    ],
)
def test_who_counts_as_one(peer: str, network: str) -> None:
    """A host has all addresses of its network under IPv6, and one under IPv4, however it is written."""
    assert network_of(peer) == network


async def test_a_flood_of_names_gives_nobody_a_new_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names beyond the bound share a bucket of their kind: who has spent theirs gets no second, others keep theirs."""
    monkeypatch.setattr(callers, "BUCKETS_MAX", 10)
    clock = FakeClock()
    rates = CallRate(2, clock)
    assert [rates.take("stranger", "mallory") for _ in range(3)] == [True, True, False]
    passed = [rates.take("stranger", f"made up {number}") for number in range(100)]
    assert sum(passed) == 9 + 2
    assert not rates.take("stranger", "mallory")
    assert rates.take("token", "alice")
    await clock.advance(1)
    assert [rates.take("stranger", "mallory") for _ in range(3)] == [True, True, False]
    assert rates.take("stranger", "somebody new")
