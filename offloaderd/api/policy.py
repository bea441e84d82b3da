"""PolicyService: policies at every level, the values that hold, and their levels.

A policy is checked together with the values that it inherits. All mistakes are reported together, and nothing is stored
then.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from offloaderd.api.admin import given_policies, origins, policies_message
from offloaderd.api.calls import Context
from offloaderd.core.errors import CorruptData, InvalidInput, OffloaderError
from offloaderd.core.model import OffloadMethod, Retained, TopicName
from offloaderd.core.names.patterns import Breadth, TopicPattern
from offloaderd.format.parsing import filled
from offloaderd.metadata.port import MetadataStore
from offloaderd.policy import store as stored
from offloaderd.policy.policies import Effective, Level, OffloadPolicies, Origin, effective
from offloaderd.policy.records import TopicPolicy, own
from offloaderd.policy.resolver import Namespace, node_of, spelled
from offloaderd.policy.rules import Surroundings, checked, sound, waiting_size, waiting_time
from offloaderd.policy.updates import Levels
from offloaderd.protocol.v1 import policy_pb2 as pb
from offloaderd.protocol.v1 import policy_pb2_grpc

Retention = Callable[[str, str], Awaitable[Retained]]
"""Returns what Pulsar retains of the topics of a tenant's namespace, as far as it is known."""

Where = Namespace | TopicName | None
"""A level: a namespace, a topic, or (None) the broker."""

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class PolicyService(policy_pb2_grpc.PolicyServiceServicer):
    """Answers from the metadata store, and changes policies. `place` has the daemon's own limits."""

    levels: Levels
    metadata: MetadataStore
    place: Surroundings
    retained: Retention | None = None

    async def GetPolicies(self, request: pb.GetPoliciesRequest, context: Context) -> pb.GetPoliciesResponse:
        """Return the values set at a level, and those that hold there. Raises InvalidInput, Transient."""
        where = level_of(request.level)
        await self.levels.book.load()
        answer = pb.GetPoliciesResponse(level=request.level)
        if isinstance(where, TopicName):
            found = (await stored.read(self.metadata, [where])).get(where)
            known = found if isinstance(found, TopicPolicy) else None
            if known is not None:
                answer.enabled, answer.selected_by = known.enabled, known.selected_by
            answer.damage = str(found) if isinstance(found, CorruptData) else ""
            said, holds = own(known or TopicPolicy()), self.levels.book.effective(where, known)
        else:
            said = self.levels.book.policies_of(where)
            answer.damage = "its record cannot be read" if node_of(where) in self.levels.book.damaged else ""
            holds = self._merged(where, said)
        answer.own.CopyFrom(policies_message(said))
        answer.effective.CopyFrom(policies_message(holds.values))
        answer.origins.extend(origins(holds))
        return answer

    async def SetPolicies(self, request: pb.SetPoliciesRequest, context: Context) -> pb.ChangePoliciesResponse:
        """Set values at a level. Raises InvalidInput with every mistake, Transient."""
        where = level_of(request.level)
        policies, flaws = sound(given_policies(request.policies))
        if not (flaws or policies.set_values()):
            raise InvalidInput("a policy that says nothing", hint="give at least one value, or remove the policies")
        await self.levels.book.load()
        merged = self._merged(where, policies)
        place, notes = await self._placed(where, policies, merged)
        checked(policies, flaws, merged, place)
        if isinstance(where, TopicName):
            effects = await self.levels.set_topic_policies(where, policies, dry_run=request.dry_run)
        else:
            effects = await self.levels.set_policies(where, policies, dry_run=request.dry_run)
        notes += _notes(where, policies, merged)
        return filled(pb.ChangePoliciesResponse, topics=effects, notes=notes)

    async def RemovePolicies(self, request: pb.RemovePoliciesRequest, context: Context) -> pb.ChangePoliciesResponse:
        """Remove all values of a level. Raises InvalidInput, NotFound when there are none, Transient."""
        where = level_of(request.level)
        if isinstance(where, TopicName):
            effects = await self.levels.remove_topic_policies(where, dry_run=request.dry_run)
        else:
            effects = await self.levels.set_policies(where, None, dry_run=request.dry_run)
        return filled(pb.ChangePoliciesResponse, topics=effects, notes=[])

    def _merged(self, where: Where, policies: OffloadPolicies) -> Effective:
        """Return the values that hold at a level with these own ones."""
        book = self.levels.book
        if isinstance(where, TopicName):
            return book.effective(where, replace(TopicPolicy(), **policies.set_values()))
        here = Level(Origin.BROKER, policies) if where is None else Level(Origin.NAMESPACE, policies, spelled(where))
        return effective([here, *book.above(where)])

    async def _placed(
        self, where: Where, policies: OffloadPolicies, merged: Effective
    ) -> tuple[Surroundings, list[str]]:
        """Return the limits of a level with Pulsar's retention of its topics, and a note when that is unknown."""
        waits = " and ".join(filter(None, (waiting_time(policies, merged), waiting_size(policies, merged))))
        if not waits or where is None or not self.place.has_brokers:
            return self.place, []
        name = spelled((where.tenant, where.namespace) if isinstance(where, TopicName) else where)
        unknown = f"{waits} was not compared with Pulsar's retention of {name}"
        if self.retained is None:
            return self.place, [f"{unknown}: pulsar.admin_url is not set"]
        try:
            kept = await self.retained(*name.split("/"))
        except OffloaderError as error:
            log.warning("policy.retention_unknown", namespace=name, error=str(error))
            return self.place, [f"{unknown}: {error}"]
        if 0 in kept:
            return self.place, [f"Pulsar keeps nothing of {name} once it is acknowledged, offloaded or not"]
        return replace(self.place, retention_s=kept.seconds, retention_bytes=kept.size_bytes), []


def level_of(message: pb.PolicyLevel) -> Where:
    """Parse a level. Raises InvalidInput."""
    match message.WhichOneof("level"):
        case "broker" if message.broker:
            return None
        case "namespace":
            return namespace_of(message.namespace)
        case "topic":
            return TopicName.parse(message.topic)
    raise InvalidInput("no level is named", hint="name the broker, a namespace or a topic")


def namespace_of(text: str) -> Namespace:
    """Parse `TENANT/NAMESPACE`. Raises InvalidInput."""
    try:
        pattern = TopicPattern.named(f"{text}/*")  # an expression (re:) is not compiled here
    except InvalidInput:
        pattern = None
    if pattern is None or pattern.breadth is not Breadth.NAMESPACE or None in pattern.scope:
        raise InvalidInput(f"malformed namespace {text!r}", hint="write TENANT/NAMESPACE")
    return str(pattern.scope.tenant), str(pattern.scope.namespace)


def _notes(where: Where, policies: OffloadPolicies, merged: Effective) -> list[str]:
    """Return notes about effects that an operator may not expect."""
    notes, values = [], merged.values
    off = (values.threshold_bytes or 0) < 0 and (values.threshold_s or 0) < 0
    if values.method is OffloadMethod.LEDGER_BASED and off:
        notes += ["without a threshold closed ledgers go by hand only, as in Pulsar; a threshold of 0 takes each one"]
    if where is None and policies.offloads:
        notes += ["a method at the broker level offloads no topic by itself: enable topics, a pattern or a namespace"]
    return notes
