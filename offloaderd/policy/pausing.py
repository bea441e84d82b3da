"""Pausing and resuming a topic: a part of the topic's own policy.

It is in the metadata store, so it survives restarts and moves with the topic; changes of patterns and policies leave it
alone. The owner seals and commits its open segment, and begins no other; reads, retention and grants continue. A topic
that is only pushed commits all accepted entries and accepts no more.
"""

from dataclasses import dataclass, replace

from offloaderd.core.clock import Clock
from offloaderd.core.errors import CorruptData, NotFound
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import partitioned_topic
from offloaderd.metadata.port import MetadataStore
from offloaderd.policy import store as stored
from offloaderd.policy.records.topic import Paused, TopicPolicy
from offloaderd.policy.store import topic_policies


@dataclass(frozen=True, slots=True)
class PauseChange:
    """The pause of one topic, and whether this call changed it."""

    topic: TopicName
    paused: Paused | None
    changed: bool


async def set_paused(
    store: MetadataStore, clock: Clock, topic: TopicName, paused: Paused | None, *, dry_run: bool = False
) -> list[PauseChange]:
    """Pause a topic with its partitions, or (None) resume them; a paused one keeps its time and operator.

    Raises NotFound when neither is enabled, Transient.
    """
    policies = await topic_policies(store)
    named = sorted(one for one in policies if topic in {one, partitioned_topic(one)})
    before = {one: policy for one in named if isinstance(policy := policies[one], TopicPolicy) and policy.enabled}
    if not before:
        raise NotFound(f"{topic} is not enabled", hint=f"offloadctl topics enable {topic}")
    moving = [one for one, policy in before.items() if (policy.paused is None) is not (paused is None)]

    def decide(_topic: TopicName, now: TopicPolicy | CorruptData | None) -> TopicPolicy | None:
        if not isinstance(now, TopicPolicy) or (now.paused is None) is (paused is None):
            return None
        return replace(now, paused=paused)

    if not dry_run:
        await stored.write(store, clock, moving, decide, known=before)
    return [
        PauseChange(one, paused if one in moving else policy.paused, one in moving) for one, policy in before.items()
    ]
