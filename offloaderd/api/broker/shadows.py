"""Shadow topics (PIP-180): a broker reads ledgers of the source topic under the shadow's name.

The shadow's list has the ledgers of its source, and the driver gets only the shadow's name: neither its metadata nor
the attempt's id name the source. So the source is read from a property of the shadow's list. An id alone would open the
ledger of any topic; here the caller needs the role for the source as well.
"""

import structlog

from offloaderd.api.gate import check_source
from offloaderd.core.errors import NotFound, Transient
from offloaderd.core.limits import Bounded
from offloaderd.core.model import TopicName
from offloaderd.ledgers.port import ShadowTopics
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.upkeep.grants.closed_ledger import is_held

log = structlog.get_logger(__name__)


KNOWN_MAX = 10_000
"""Topics whose answers are kept, the most recent ones."""


class ShadowSources:
    """Source topics of shadow topics.

    Whether a topic is a shadow never changes, so the last answer counts while Pulsar's metadata cannot be read.
    """

    def __init__(self, register: object) -> None:
        """`register` is Pulsar's list, if it can be read."""
        self._register = register if isinstance(register, ShadowTopics) else None
        self._known: Bounded[TopicName, TopicName | None] = Bounded(KNOWN_MAX)

    async def source_of(self, stored: TopicMap, ledger_id: int) -> TopicName | None:
        """Return the source topic of a ledger of a shadow topic, None for a ledger of the topic itself.

        Raises NotAllowed (the caller may not read the source), Transient (Pulsar's metadata cannot be read, nor could
        before).
        """
        if self._register is None or is_held(stored, ledger_id):
            return None
        source = await self._asked(self._register, stored.topic)
        if source is not None:
            check_source(source)
            log.info("ledger.of_source", topic=str(stored.topic), source=str(source), ledger_id=ledger_id)
        return source

    async def _asked(self, register: ShadowTopics, topic: TopicName) -> TopicName | None:
        try:
            source = await register.source_topic(topic)
        except NotFound:
            return None
        except Transient:
            if topic not in self._known:
                raise
            return self._known[topic]
        self._known[topic] = source
        return source
