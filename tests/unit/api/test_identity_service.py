"""IdentityService over gRPC: what is shown of a deployment, and what an operator's word changes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from offloaderd.api.identity import BELIEFS, IdentityService
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import RefusalKind
from offloaderd.format.head import PlaceMarker
from offloaderd.metadata import identity
from offloaderd.metadata.identity import ensure_deployment
from offloaderd.metadata.records.identity import Deployment
from offloaderd.objects import marker
from offloaderd.protocol.v1 import identity_pb2, identity_pb2_grpc
from tests.unit.api.serve import serving
from tests.unit.rigs.owned import Owned, offloaded_topic
from tests.unit.rigs.rig import TOPIC

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REAL_TIME = "gRPC"

HERE, THERE = UUID(int=1), UUID(int=2)
BACK = RefusalKind.METADATA_WENT_BACK


@asynccontextmanager
async def served() -> AsyncIterator[tuple[identity_pb2_grpc.IdentityServiceAsyncStub, Owned]]:
    """Yield the service's stub, and the topic's owner."""
    rig = await offloaded_topic(10)
    rig.deployment_id = str(HERE)
    owned = await Owned.claim(rig)
    await ensure_deployment(owned.context.metadata, Deployment(deployment_id=HERE, made_ms=1, made_by="one"))
    service = IdentityService(owned.context, daemon_id="one")
    async with serving(
        Metrics(), lambda server: identity_pb2_grpc.add_IdentityServiceServicer_to_server(service, server)
    ) as channel:
        stub: identity_pb2_grpc.IdentityServiceAsyncStub = identity_pb2_grpc.IdentityServiceStub(channel)
        yield stub, owned


def accept(**what: object) -> identity_pb2.AcceptIdentityRequest:
    """Return a request."""
    return identity_pb2.AcceptIdentityRequest(**what)  # type: ignore[arg-type]


async def test_a_refusal_is_shown_and_accepted_once_it_is_meant() -> None:
    """A dry run says what would be believed; the word itself lifts that refusal, is kept, and is told."""
    async with served() as (stub, owned):
        assert await owned.offloader.identity.refuse(BACK, "segment 5 is newer", "head at segment 5")
        shown = await stub.ShowIdentity(identity_pb2.ShowIdentityRequest(topic=str(TOPIC)))
        assert (shown.deployment_id, [one.kind for one in shown.refusals]) == (str(HERE), [BACK])
        tried = await stub.AcceptIdentity(accept(topic=str(TOPIC), kind=BACK, dry_run=True))
        assert list(tried.believed) == [f"{TOPIC}: segment 5 is newer", BELIEFS[BACK]]
        assert await identity.deletion_refused(owned.context.metadata, TOPIC)
        with capture_logs() as logs:
            assert (await stub.AcceptIdentity(accept(topic=str(TOPIC), kind=BACK))).believed == tried.believed
        assert [one["topic"] for one in logs if one["event"] == "identity.accepted"] == [str(TOPIC)]
        assert await identity.deletion_refused(owned.context.metadata, TOPIC) == ""
        assert not await owned.offloader.identity.refuse(BACK, "segment 5 is newer", "head at segment 5")
        after = await stub.ShowIdentity(identity_pb2.ShowIdentityRequest(topic=str(TOPIC)))
        assert [(one.kind, one.evidence) for one in after.accepted] == [(BACK, "head at segment 5")]


async def test_what_is_not_refused_cannot_be_accepted() -> None:
    """Neither a kind of a topic, nor places or a source that are in order, nor nothing at all."""
    async with served() as (stub, _):
        for request, code in (
            (accept(topic=str(TOPIC), kind=BACK), "NOT_FOUND"),
            (accept(places=True), "NOT_FOUND"),
            (accept(source=True), "NOT_FOUND"),
            (accept(), "INVALID_ARGUMENT"),
        ):
            with pytest.raises(Exception, match=code):
                await stub.AcceptIdentity(request)


async def test_a_place_of_another_deployment_is_taken_over() -> None:
    """The marker is this deployment's from then on, and says whose it was."""
    async with served() as (stub, owned):
        store = owned.rig.store.at("b")
        theirs = PlaceMarker(deployment_id=str(THERE), cluster="test", daemon_id="two", since_ms=1)
        await marker.put(store, "seg/", theirs)
        (place,) = (await stub.ShowIdentity(identity_pb2.ShowIdentityRequest())).places
        assert (place.deployment_id, place.other) == (str(THERE), True)
        await stub.AcceptIdentity(accept(places=True, dry_run=True))
        found = await marker.read(store, "seg/", "test")
        assert found is not None
        assert found.marker == theirs
        (said,) = (await stub.AcceptIdentity(accept(places=True))).believed
        assert str(THERE) in said
        found = await marker.read(store, "seg/", "test")
        assert found is not None
        assert (found.marker.deployment_id, found.marker.before) == (str(HERE), str(THERE))


async def test_a_provisional_marker_without_a_daemon_is_removed() -> None:
    """The place is this deployment's, another one has said that it works there as well: an operator knows better."""
    async with served() as (stub, owned):
        store = owned.rig.store.at("b")
        ours, theirs = (
            PlaceMarker(deployment_id=str(one), cluster="test", daemon_id="one", since_ms=1) for one in (HERE, THERE)
        )
        await marker.put(store, "seg/", ours)
        await marker.put(store, "seg/", theirs, provisional=True)
        for dry_run in (True, False):
            assert list(await marker.provisional_deployments(store, "seg/", "test")) == [str(THERE)]
            (said,) = (await stub.AcceptIdentity(accept(places=True, dry_run=dry_run))).believed
            assert str(THERE) in said
        assert await marker.provisional_deployments(store, "seg/", "test") == {}
