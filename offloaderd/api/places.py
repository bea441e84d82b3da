"""PlacesService: where segments lie, and the exchange of a topic's first place and its mirror."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

from offloaderd.api.calls import Context
from offloaderd.api.paging import page
from offloaderd.core.errors import Conflict, CorruptData
from offloaderd.core.model import TopicName
from offloaderd.fleet.engine import Engine
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.topic_map.mirroring import Place, target
from offloaderd.policy import store as stored
from offloaderd.policy.policies import Effective, Level, OffloadPolicies, Origin, effective, place_named
from offloaderd.policy.records import TopicPolicy
from offloaderd.policy.rules import Surroundings, checked
from offloaderd.protocol.v1 import places_pb2 as pb
from offloaderd.protocol.v1 import places_pb2_grpc
from offloaderd.upkeep import switching
from offloaderd.upkeep.switching import text_of

log = structlog.get_logger(__name__)

LOOK_S = 0.2
"""Pause between two looks at whether a copy has ended."""
Services = Mapping[Place, tuple[str, str]]
"""Name and kind of the service of each place of the settings, the daemon's own first."""


@dataclass(eq=False)
class PlacesService(places_pb2_grpc.PlacesServiceServicer):
    """Answers from the topic map; exchanges through the topic's owner. `place` has the daemon's own limits."""

    engine: Engine
    metadata: MetadataStore
    place: Surroundings
    services: Services

    def __post_init__(self) -> None:
        self._clock = self.engine.context.upload_context.clock

    async def ListPlaces(self, request: pb.ListPlacesRequest, context: Context) -> pb.ListPlacesResponse:
        """Return the places, and what of a topic lies in each. Raises InvalidInput, Transient, CorruptData."""
        found = {one: _place(one, *self.services[one]) for one in self.services}
        if not request.topic:
            book = self.engine.book
            everywhere = effective([Level(Origin.BROKER, book.policies_of(None)), *book.above(None)]).values
            _name_roles(found, _own(everywhere), place_named(everywhere.mirror or ""))
            places, token = page(request, list(found.values()), _name_of)
            return pb.ListPlacesResponse(places=places, next_page_token=token)
        topic = TopicName.parse(request.topic)
        policy = (await self.engine.book.of(topic)).values
        segments = (await self.engine.topic_map(topic)).segments
        own, mirror = _own(policy), place_named(policy.mirror or "")
        for segment in segments:
            _count(found, segment)
        _name_roles(found, own, mirror)
        due = [one for one in segments if mirror is not None and target(one, own, mirror) is not None]
        written = await self._written_in(topic)
        offloader = self.engine.find(topic)
        copies = offloader.status().mirror if offloader is not None else None
        places, token = page(request, list(found.values()), _name_of)
        return pb.ListPlacesResponse(
            places=places,
            next_page_token=token,
            uncopied_segments=len(due),
            uncopied_bytes=sum(one.object_bytes for one in due),
            open_place=next((text_of(one) for one in sorted(written, key=lambda it: it == own)), ""),
            uncopied_since_ms=min((one.offloaded_ms for one in due), default=0),
            now_ms=self._clock.wall_ms(),
            copy_failure=copies.failure if copies is not None else "",
            copy_failing_since_ms=copies.failing_since_ms if copies is not None else 0,
        )

    async def _written_in(self, topic: TopicName) -> list[Place]:
        """Return the places in which segments of a topic are being written: live ones, of history, by jobs."""
        jobs = [UUID(name) for name in await self.metadata.children(paths.history_attempts(topic))]
        own = (paths.attempt(topic), paths.history_attempt(topic), paths.rollback_attempt(topic))
        found = []
        for path in (*own, *(paths.history_job_attempt(topic, one) for one in jobs)):
            attempt = await nodes.record(self.metadata, path, attempt_record.decode)
            if attempt is not None:
                found.append((attempt.driver_properties.get("bucket", ""), attempt.driver_properties.get("prefix", "")))
        return found

    async def SetMirror(self, request: pb.SetMirrorRequest, context: Context) -> pb.SetMirrorResponse:
        """Name the mirror in the topic's policy. Raises InvalidInput, NotFound (not enabled), Conflict, Transient.

        Conflict: another daemon owns the topic, or its policy was changed meanwhile.
        """
        topic, mirror = TopicName.parse(request.topic), request.mirror
        await self.engine.owned(topic)
        policy = await self.engine.book.of(topic, fresh=True)
        before = policy.values.mirror or ""
        changed = place_named(before) != place_named(mirror)
        if changed:
            await self._change_policy(topic, policy, OffloadPolicies(mirror=mirror), dry_run=request.dry_run)
        return pb.SetMirrorResponse(before=before, changed=changed)

    async def SwitchPlaces(
        self, request: pb.SwitchPlacesRequest, context: Context
    ) -> AsyncGenerator[pb.SwitchProgress, None]:
        """Exchange first place and mirror. Raises InvalidInput, NotFound (not enabled), Conflict, Fenced, Transient.

        Conflict: another daemon owns the topic, it has no mirror, or its policy was changed meanwhile.
        """
        topic = TopicName.parse(request.topic)
        offloader = await self.engine.owned(topic)
        with offloader.in_use():
            policy = await self.engine.book.of(topic, fresh=True)
            wanted = switching.planned(offloader.map.segments, policy.values, request.to)
            progress = pb.SwitchProgress(
                first=text_of(wanted.first),
                mirror=text_of(wanted.mirror),
                policy_changed=wanted.policy_changes,
                segments_total=len(wanted.segments),
                bytes_total=sum(one.object_bytes for one in wanted.segments),
                waiting=wanted.waiting,
            )
            if wanted.policy_changes:
                bucket, prefix = wanted.first
                places = OffloadPolicies(bucket=bucket, prefix=prefix, mirror=progress.mirror)
                await self._change_policy(topic, policy, places, dry_run=request.dry_run)
            if not request.dry_run:
                async with aclosing(switching.exchange(offloader.record, wanted)) as exchanged:
                    async for progress.segments in exchanged:
                        yield progress
                log.info(
                    "places.switched",
                    topic=str(topic),
                    first=progress.first,
                    mirror=progress.mirror,
                    segments=progress.segments,
                    waiting=progress.waiting,
                )
                offloader.changed.notify()
            progress.done = True
            yield progress

    async def DeleteCopies(
        self, request: pb.DeleteCopiesRequest, context: Context
    ) -> AsyncGenerator[pb.DeleteCopiesProgress, None]:
        """Put copies in places that the policy does not name on the trash list. Raises as SwitchPlaces.

        A copy that is being made there ends first, however long that takes: it would be recorded afterwards.
        """
        topic = TopicName.parse(request.topic)
        offloader = await self.engine.owned(topic)
        with offloader.in_use():
            policy = (await self.engine.book.of(topic, fresh=True)).values
            while not request.dry_run and offloader.mirror.copying_to not in {None, *switching.named_by(policy)}:
                await self._clock.sleep(LOOK_S)
            wanted = switching.unnamed(offloader.map.segments, policy)
            progress = pb.DeleteCopiesProgress(
                places=sorted({text_of(place) for _, place in wanted}),
                copies_total=len(wanted),
                bytes_total=sum(one.object_bytes for one, _ in wanted),
            )
            for number, (segment, place) in enumerate(wanted if not request.dry_run else (), start=1):
                await offloader.record.drop_copy(segment.segment_id, place)
                progress.copies = number
                yield progress
            if progress.copies:
                log.info(
                    "places.copies_deleted", topic=str(topic), places=list(progress.places), copies=progress.copies
                )
            progress.done = True
            yield progress

    async def _change_policy(
        self, topic: TopicName, before: Effective, places: OffloadPolicies, *, dry_run: bool
    ) -> None:
        """Write places into the topic's policy, and apply it. Raises InvalidInput, Conflict, Transient.

        A topic whose policy follows from a pattern has one by its name from then on, with the same other values.
        """
        book = self.engine.book

        def changed(_: TopicName, now: TopicPolicy | CorruptData | None) -> TopicPolicy | None:
            if not isinstance(now, TopicPolicy) or not same_places(book.effective(topic, now), before):
                return None
            return replace(now, selected_by="", **places.set_values())

        current = (await stored.read(self.metadata, [topic])).get(topic)
        coming = changed(topic, current)
        if coming is not None:
            checked(places, [], book.effective(topic, coming), self.place)
        if not dry_run and coming is not None:
            written = await stored.write(self.metadata, self._clock, [topic], changed, known=[topic])
            coming = written.get(topic)
            await self.engine.refresh_policy(topic)
        if coming is None:
            raise Conflict(f"the policy of {topic} was changed meanwhile", hint="look at it, and repeat the command")


def same_places(one: Effective, other: Effective) -> bool:
    """Whether two policies name the same first place and mirror."""
    names = ("bucket", "prefix", "mirror")
    return all(getattr(one.values, name) == getattr(other.values, name) for name in names)


def _own(policy: OffloadPolicies) -> Place:
    return policy.bucket or "", policy.prefix or ""


def _name_of(place: pb.ListPlacesResponse.Place) -> str:
    return text_of((place.bucket, place.prefix))


def _place(place: Place, service: str = "", kind: str = "") -> pb.ListPlacesResponse.Place:
    bucket, prefix = place
    return pb.ListPlacesResponse.Place(service=service, kind=kind, bucket=bucket, prefix=prefix)


def _name_roles(found: dict[Place, pb.ListPlacesResponse.Place], first: Place, mirror: Place | None) -> None:
    for place, role in ((mirror, "mirror"), (first, "first")):  # which may be the same, by levels
        if place is not None:
            found.setdefault(place, _place(place)).role = role


def _count(found: dict[Place, pb.ListPlacesResponse.Place], segment: CommittedSegment) -> None:
    """Count a segment in each of its places."""
    here = found.setdefault(segment.place, _place(segment.place))
    here.segments += 1
    here.segment_bytes += segment.object_bytes
    here.segment_entries += segment.entries
    here.broker_segments += segment.foreign
    if segment.mirror is None:
        return
    there = found.setdefault(segment.mirror, _place(segment.mirror))
    there.copies += 1
    there.copy_bytes += segment.object_bytes
    there.copy_entries += segment.entries
    here.both += 1
    there.both += 1
