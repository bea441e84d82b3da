"""IdentityService: this deployment's identity, refusals, and their acceptance by an operator."""

from collections.abc import Sequence
from dataclasses import replace

import structlog

from offloaderd.api.calls import Context
from offloaderd.core.errors import Conflict, CorruptData, InvalidInput, NotFound, OffloaderError
from offloaderd.core.model import RefusalKind, TopicName
from offloaderd.format.head import PlaceMarker
from offloaderd.format.parsing import filled
from offloaderd.metadata import identity, paths
from offloaderd.metadata.records import identity as identity_record
from offloaderd.metadata.records.identity import Acceptance, Deployment, SourceIdentity
from offloaderd.objects import marker
from offloaderd.objects.places import Place
from offloaderd.protocol.v1 import admin_pb2, identity_pb2_grpc
from offloaderd.protocol.v1 import identity_pb2 as pb
from offloaderd.segment.context import OffloadContext

log = structlog.get_logger(__name__)

BELIEFS = {
    RefusalKind.METADATA_WENT_BACK: "the metadata are right: what the bucket has beyond them is offloaded again from "
    "the source, or lost where the source has it no more; its objects stay until other segments hold their entries",
    RefusalKind.OTHER_DEPLOYMENT: "the other deployment does not write this topic any more: this one continues where "
    "its map ends",
    RefusalKind.HEAD_UNREADABLE: "the metadata are the newest, and no other deployment writes this topic: the damaged "
    "head is put anew with the next commit",
    RefusalKind.OTHER_SOURCE: "the ledgers of this source are those that were offloaded: its list is followed",
    RefusalKind.UNKNOWN_SOURCE: "this source is the one that was offloaded: its list is followed, and what it "
    "has no more was deleted",
    RefusalKind.LIST_BEHIND: "the source's list is whole: nothing behind what is offloaded was ever there",
    RefusalKind.LEDGER_REPLACED: "the ledger is the one that was offloaded, whenever it was created",
    RefusalKind.LEDGER_SHORTER: "the ledger ended where the source says: what the tier has beyond that stays readable",
    RefusalKind.UNKNOWN_PLACE: "this is the place that brokers offloaded these ledgers to: those of them that are "
    "neither there nor in BookKeeper are lost, and the topic goes on behind them",
}
"""Consequence of accepting each kind of refusal."""


class IdentityService(identity_pb2_grpc.IdentityServiceServicer):
    """Answers from metadata, bucket and source; changes records by compare-and-set, whoever owns the topic."""

    def __init__(self, context: OffloadContext, *, daemon_id: str) -> None:
        self._context = context
        self._daemon_id = daemon_id
        self._clock = context.upload_context.clock

    async def ShowIdentity(self, request: pb.ShowIdentityRequest, context: Context) -> pb.ShowIdentityResponse:
        """Return the identities and refusals. Raises InvalidInput, CorruptData, Transient."""
        known = await identity.deployment(self._context.metadata)
        found = pb.ShowIdentityResponse(source_found=await self._source() or "")
        accepted: Sequence[Acceptance] = known.accepted if known is not None else ()
        if known is not None:
            found.deployment_id, found.made_ms, found.made_by = str(known.deployment_id), known.made_ms, known.made_by
            if known.source is not None:
                found.source_kind, found.source_id = known.source.kind, known.source.instance_id
        if request.topic:
            record = (await identity.load(self._context.metadata, TopicName.parse(request.topic))).record
            found.refusals.extend(filled(admin_pb2.IdentityRefusal, one) for one in record.refusals)
            accepted = record.accepted
        found.accepted.extend(filled(pb.AcceptedIdentity, one) for one in accepted)
        found.places.extend([await self._place(place) for place in self._context.places])
        return found

    async def AcceptIdentity(self, request: pb.AcceptIdentityRequest, context: Context) -> pb.AcceptIdentityResponse:
        """Accept a refused difference. Raises InvalidInput, NotFound (nothing is refused), Conflict, Transient."""
        match request.WhichOneof("what"):
            case "topic":
                believed = await self._accept_topic(
                    TopicName.parse(request.topic), request.kind, by=context.peer(), dry_run=request.dry_run
                )
            case "places":
                believed = await self._accept_places(dry_run=request.dry_run)
            case "source":
                believed = await self._accept_source(by=context.peer(), dry_run=request.dry_run)
            case _:
                raise InvalidInput("say what is to be accepted", hint="a topic and a kind, the places, or the source")
        if not request.dry_run:
            log.warning("identity.accepted", what=request.WhichOneof("what"), topic=request.topic, believed=believed)
        return pb.AcceptIdentityResponse(believed=believed)

    async def _accept_topic(self, topic: TopicName, kind: str, *, by: str, dry_run: bool) -> list[str]:
        record, version = await identity.load(self._context.metadata, topic)
        refusal = next((one for one in record.refusals if one.kind == kind), None)
        if refusal is None or version is None:
            stands = ", ".join(one.kind for one in record.refusals) or "nothing"
            raise NotFound(f"no {kind!r} is refused of {topic}: {stands} is", hint="offloadctl identity show TOPIC")
        if not dry_run:
            accepted = record.accepting(
                Acceptance(kind=kind, evidence=refusal.evidence, by=by, at_ms=self._clock.wall_ms())
            )
            await self._context.metadata.replace(paths.identity(topic), identity_record.encode(accepted), version)
        words = BELIEFS.get(RefusalKind(kind), "") if kind in set(RefusalKind) else ""
        return [f"{topic}: {refusal.found}", *([words] if words else [])]

    async def _accept_places(self, *, dry_run: bool) -> list[str]:
        ours, cluster, believed = self._context.deployment_id, self._context.cluster, []
        for place in self._context.places:
            store, found = self._context.upload_context.objects.at(place.bucket), None
            try:
                found = await marker.read(store, place.prefix, cluster)
                theirs = found.marker.deployment_id if found is not None and found.other_than(ours) else ""
            except CorruptData:
                theirs = "a deployment whose marker cannot be read"
            if not theirs:
                gone = await marker.provisional_deployments(store, place.prefix, cluster) if found is not None else {}
                believed += [f"{place} is this deployment's alone: {one} works there no more" for one in gone]
                if gone and not dry_run:
                    await store.delete(list(gone.values()))
                continue
            believed.append(f"{place} is this deployment's: {theirs} works there no more")
            if not dry_run:
                made = PlaceMarker(
                    deployment_id=ours,
                    cluster=cluster,
                    daemon_id=self._daemon_id,
                    since_ms=self._clock.wall_ms(),
                    before=theirs,
                )
                await marker.put(store, place.prefix, made)
                self._context.upload_context.metrics.identity_places_refused.set(0)
        if not believed:
            raise NotFound("no place of this daemon is another deployment's", hint="offloadctl identity show")
        return believed

    async def _accept_source(self, *, by: str, dry_run: bool) -> list[str]:
        found, store = await self._source(), self._context.metadata
        known = await identity.deployment(store)
        noted = known.source if known is not None else None
        if found is None or known is None or noted is None or noted.instance_id == found:
            raise NotFound("the source of this daemon is the one that is noted", hint="offloadctl identity show")
        if not dry_run:
            await self._note_source(known, noted, found, by)
        return [f"what is offloaded, and what is to come, is of the source {found}, not of {noted.instance_id}"]

    async def _note_source(self, known: Deployment, noted: SourceIdentity, found: str, by: str) -> None:
        version = (await self._context.metadata.get(paths.IDENTITY)).version
        if await identity.deployment(self._context.metadata) != known:
            raise Conflict("the deployment's record has just been changed", hint="look at it, and try again")
        accepted = Acceptance(
            kind=RefusalKind.OTHER_SOURCE,
            evidence=f"source {found} instead of {noted.instance_id}",
            by=by,
            at_ms=self._clock.wall_ms(),
        )
        value = replace(known, source=replace(noted, instance_id=found), accepted=(*known.accepted, accepted))
        await self._context.metadata.replace(paths.IDENTITY, identity_record.encode_deployment(value), version)

    async def _source(self) -> str | None:
        known = self._context.known_source
        return await known.origin.identity() if known is not None else None

    async def _place(self, place: Place) -> pb.PlaceIdentity:
        said = pb.PlaceIdentity(bucket=place.bucket, prefix=place.prefix)
        try:
            found = await marker.read(
                self._context.upload_context.objects.at(place.bucket), place.prefix, self._context.cluster
            )
        except OffloaderError as error:
            said.error = str(error)
            return said
        if found is not None:
            one = found.marker
            said.deployment_id, said.daemon_id, said.since_ms = one.deployment_id, one.daemon_id, one.since_ms
            said.other = bool(found.other_than(self._context.deployment_id))
        return said
