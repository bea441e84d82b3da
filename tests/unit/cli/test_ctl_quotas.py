"""offloadctl quotas: what it asks, what it shows, and the CSV for bills."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.client.calls import PAGE_SIZE
from offloaderd.protocol.v1 import quota_pb2, quota_pb2_grpc
from tests.unit.cli.conftest import Ctl
from tests.unit.cli.fake_daemon import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

Said = quota_pb2.Quotas


class Quotas(quota_pb2_grpc.QuotaServiceServicer):
    """Answers with what it is told."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.age_s: float | None = None

    def ListQuotas(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802 - as gRPC types and names it
        """Answer with a namespace of a tenant."""
        self.requests.append(request)
        return quota_pb2.ListQuotasResponse(
            daemon_id="d-1",
            counted_age_s=self.age_s,
            namespaces=[
                quota_pb2.NamespaceQuotas(name="*", own=Said(readers=5)),
                quota_pb2.NamespaceQuotas(
                    name="acme/eu",
                    own=Said(stored_bytes=1 << 30),
                    effective=Said(stored_bytes=1 << 30, readers=5, calls=-1),
                    used=Said(stored_bytes=249_690_183, readers=0, topics=3),
                    written_bytes=4,
                    read_bytes=5,
                    requests=6,
                    stored_byte_hours=7.25,
                    since_ms=1,
                ),
            ],
        )

    def SetQuotas(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802
        """Answer with a note."""
        self.requests.append(request)
        return quota_pb2.SetQuotasResponse(before=Said(calls=1), notes=["look"])


@pytest.fixture
def quotas() -> Iterator[tuple[Quotas, Ctl]]:
    """Serve a daemon."""
    service = Quotas()
    with serving(partial(quota_pb2_grpc.add_QuotaServiceServicer_to_server, service)) as port:
        yield service, Ctl(port)


def test_quotas_are_shown(quotas: tuple[Quotas, Ctl]) -> None:
    """A line for each quota that limits or is used, with the level that set it."""
    service, ctl = quotas
    found = ctl("quotas", "show", "acme")
    assert service.requests == [quota_pb2.ListQuotasRequest(prefix="acme", page_size=PAGE_SIZE)]
    assert found.out.splitlines() == [
        "LEVEL    QUOTA              USED  LIMIT  SET",
        "*        readers               -      5  here",
        "acme/eu  stored_bytes  238.1 MiB  1 GiB  here",
        "acme/eu  topics                3      -  -",
        "acme/eu  readers               0      5  *",
        "acme/eu  calls                 -    off  *",
    ]
    assert found.err == "note: d-1 has just started: stored bytes lack those of other daemons\n"
    service.age_s = 42.5
    assert ctl("quotas").out == found.out
    assert ctl("quotas").err == "note: stored bytes and topics were counted up to 42.5 s ago\n"
    document = ctl("quotas", "show", "--json").json
    assert document["counted_age_s"] == 42.5
    assert document["namespaces"][1]["used"]["topics"] == 3


def test_quotas_are_set_and_removed(quotas: tuple[Quotas, Ctl]) -> None:
    """With units; all mistakes at once, before anybody is asked."""
    service, ctl = quotas
    found = ctl("quotas", "set", "acme/eu", "--stored", "1G", "--readers", "off", "--weight", "2", "--dry-run")
    given = Said(stored_bytes=1 << 30, readers=-1, weight=2)
    assert service.requests == [quota_pb2.SetQuotasRequest(level="acme/eu", quotas=given, dry_run=True)]
    assert found.out == (
        "would set the quotas of acme/eu: stored_bytes = 1 GiB, readers = off, weight = 2\nwould remove: calls\n"
    )
    assert "note: look" in found.err
    assert ctl("quotas", "remove", "acme").out == "set the quotas of acme: none of its own\nremoved: calls\n"
    assert service.requests[-1] == quota_pb2.SetQuotasRequest(level="acme", quotas=Said())
    wrong = ctl("quotas", "set", "acme", "--readers", "many", "--weight", "0")
    assert wrong.code == 2
    assert "readers: 'many'" in wrong.err
    assert "weight: '0'" in wrong.err
    assert "give at least one quota" in ctl("quotas", "set", "acme").err
    assert len(service.requests) == 2


def test_bills_are_lines_of_csv(quotas: tuple[Quotas, Ctl]) -> None:
    """One for each namespace, none for levels above."""
    _, ctl = quotas
    assert ctl("quotas", "export").out.splitlines() == [
        "tenant,namespace,since_ms,stored_byte_hours,requests,egress_bytes,written_bytes,stored_bytes,topics",
        "acme,eu,1,7.25,6,5,4,249690183,3",
    ]
