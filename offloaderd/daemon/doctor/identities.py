"""Checks of identities: another deployment in a place, and topics with refusals."""

from collections.abc import Sequence
from typing import cast

from offloaderd.core.aio import each
from offloaderd.core.errors import CorruptData
from offloaderd.core.model import TopicName
from offloaderd.daemon.doctor.finding import Case, Finding, fail, ok, warn
from offloaderd.metadata import identity
from offloaderd.metadata.port import MetadataStore, Versioned
from offloaderd.metadata.records.identity import hint
from offloaderd.objects import marker
from offloaderd.objects.port import ObjectReader
from offloaderd.policy.store import topic_policies

FIRST_NAMED = 3


class _Below:
    """The reads of a store below a path; opening that path as the root would create it."""

    def __init__(self, store: MetadataStore, home: str) -> None:
        self._store = store
        self._home = home

    async def get(self, path: str) -> Versioned:
        """Return a node."""
        return await self._store.get(self._home + path)

    async def children(self, path: str) -> Sequence[str]:
        """Return the names below a node."""
        return await self._store.children(self._home + path)


async def refusals(case: Case, store: MetadataStore) -> Finding:
    """Find the deployment, and check that no topic of it has a refusal."""
    home = f"{case.settings.metadata.root}/{case.settings.daemon.cluster}"
    below = cast("MetadataStore", _Below(store, home))
    found = await identity.deployment(below)
    case.deployment_id = str(found.deployment_id) if found is not None else ""
    topics = sorted(await topic_policies(below))

    async def refused(topic: TopicName) -> list[str]:
        try:
            return [one.kind for one in (await identity.load(below, topic)).record.refusals]
        except CorruptData:
            return ["unreadable"]

    kinds = dict(zip(topics, await each(topics, refused), strict=True))
    told = [f"{topic}: {', '.join(what)}" for topic, what in kinds.items() if what]
    if told:
        more = f", and {len(told) - FIRST_NAMED} more" if len(told) > FIRST_NAMED else ""
        first = next(what[0] for what in kinds.values() if what)
        return fail(f"nothing of these is deleted or granted: {'; '.join(told[:FIRST_NAMED])}{more}", hint(first))
    return ok(f"deployment {case.deployment_id or 'without an id'}; nothing is refused of {len(topics)} topics")


async def owner(case: Case, store: ObjectReader) -> Finding:
    """Check that the marker of a place names the deployment of `case`."""
    cluster, prefix = case.settings.daemon.cluster, case.settings.objects.prefix
    try:
        found = await marker.read(store, prefix, cluster)
    except CorruptData as error:
        return warn(f"the marker of this place cannot be read: {error}", marker.HINT)
    if found is None:
        return ok("no deployment has marked this place yet")
    if other := found.other_than(case.deployment_id):
        return fail(other, marker.HINT)
    return ok(f"marked by daemon {found.marker.daemon_id} of this deployment")
