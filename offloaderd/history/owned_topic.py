"""A topic that this daemon owns, as its history and its rewriting use it."""

from contextlib import AbstractContextManager
from typing import Protocol

from offloaderd.core.aio import Signal
from offloaderd.core.model import TopicName
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.claim.head import HeadKeeper
from offloaderd.segment.claim.refusals import TopicIdentity
from offloaderd.segment.claim.topic_record import TopicRecord
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.roll import RollPolicy
from offloaderd.segment.source_check import SourceCheck


class OwnedTopic(Protocol):
    """One topic under one claim; `changed` is notified of each change."""

    topic: TopicName
    claim: Claim
    head: HeadKeeper | None
    identity: TopicIdentity
    record: TopicRecord
    source_check: SourceCheck
    failure_tracker: FailureTracker
    changed: Signal
    policy_changed: Signal

    @property
    def map(self) -> TopicMap:
        """The committed segments, and what else is recorded of the topic."""
        ...

    @property
    def policy(self) -> RollPolicy:
        """The policy in force."""
        ...

    @property
    def attempt(self) -> Attempt | None:
        """The open segment's record."""
        ...

    def notify(self) -> None:
        """Wake the loop, the tailer and all that wait for a change."""
        ...

    def resting(self) -> AbstractContextManager[object]:
        """Return a context in which the duty that enters it rests."""
        ...
