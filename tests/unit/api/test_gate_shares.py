"""Several tenants at one daemon: one that opens all it can leaves room for the others."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.access.roles import Grant, Rights
from offloaderd.api.gate import Authentication, Gate, Limits
from offloaderd.core.errors import Throttled
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.testing.clock import FakeClock
from tests.unit.read.build import sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REAL_TIME = "gRPC"

READ, READ_LEDGER = "/offloaderd.v1.ReadService/Read", "/offloaderd.v1.BrokerService/ReadLedger"
STATUS = "/offloaderd.v1.AdminService/Status"
LIMITS = Limits(calls_max=10, identity_calls_max=6, identity_readers_max=4)


class Caller:
    """A call over TLS, by the certificate's name; without one it is a call to a daemon that asks for none."""

    def __init__(self, name: str) -> None:
        self._name = name

    def peer(self) -> str:
        """Always the same: they share a host."""
        return "ipv4:10.0.0.7:5"

    def invocation_metadata(self) -> Iterable[Any]:
        """Nothing."""
        return ()

    def auth_context(self) -> Mapping[str, Any]:
        """The name in the certificate."""
        return {"x509_common_name": [self._name.encode()]}


def gate(metrics: Metrics, limits: Limits = LIMITS, *, authenticated: bool = True) -> Gate:
    """Return a gate that knows everybody by certificate."""
    rights = Rights([Grant.parse("read spark *"), Grant.parse("read broker *")])
    rules = Authentication(rights=rights, certificates=True) if authenticated else None
    return Gate(metrics, FakeClock(), limits, rules)


def opened(stack: ExitStack, site: Gate, name: str, path: str, count: int) -> None:
    """Open so many calls."""
    for _ in range(count):
        stack.enter_context(site.admitted(path, Caller(name), stream=True))


def test_one_reader_does_not_take_the_brokers_places() -> None:
    """It is told which limit it met; the broker reads, and what was closed may be opened again."""
    metrics = Metrics()
    site = gate(metrics)
    with ExitStack() as brokers:
        with ExitStack() as spark:
            opened(spark, site, "spark", READ, 4)
            with pytest.raises(Throttled, match="spark has 4 reads open already") as refused:
                opened(spark, site, "spark", READ, 1)
            assert "access.identity_readers_max" in refused.value.hint
            opened(brokers, site, "broker", READ_LEDGER, 4)
            assert sample(metrics, "offloaderd_grpc_identity_highest", {"of": "readers"}) == 4
            assert sample(metrics, "offloaderd_grpc_refused_total", {"reason": "identity_readers"}) == 1
        with ExitStack() as spark:
            opened(spark, site, "spark", READ, 4)
    assert sample(metrics, "offloaderd_grpc_identity_highest", {"of": "readers"}) == 0
    assert not site._shares


def test_one_caller_does_not_take_all_calls() -> None:
    """Whatever they are; reads are calls, too."""
    metrics = Metrics()
    site = gate(metrics)
    with ExitStack() as stack:
        opened(stack, site, "spark", READ, 4)
        opened(stack, site, "spark", STATUS, 2)
        with pytest.raises(Throttled, match="spark has 6 calls open already") as refused:
            opened(stack, site, "spark", STATUS, 1)
        assert "access.identity_calls_max" in refused.value.hint
        opened(stack, site, "broker", STATUS, 4)
        with pytest.raises(Throttled, match="serves 10 calls"):
            opened(stack, site, "broker", STATUS, 1)


def test_without_authentication_nobody_has_a_share() -> None:
    """An address may be that of many, as a sidecar's loopback is."""
    with ExitStack() as stack:
        opened(stack, gate(Metrics(), authenticated=False), "", READ, 10)
