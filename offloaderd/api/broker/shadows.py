"""Shadow topics (PIP-180): a broker reads by the shadow's name what the topic behind it has offloaded.

The shadow's list has the ledgers of its source, and the driver hears no name but the shadow's: neither the recorded
metadata nor the attempt's id tells it another one. So Pulsar's own word is asked, a property of the shadow's list. An
id would be a key to the ledger of whatever topic it belongs to; here the caller needs the role for the source as well.
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
"""As many topics' answers are kept, of those that were asked for last."""


class ShadowSources:
    """Whose ledgers the topics of a daemon's callers read.

    A topic is made as a shadow or not, so the last answer stands while Pulsar's metadata cannot be read.
    """

    def __init__(self, register: object) -> None:
        """`register` is Pulsar's list, if it can be read."""
        self._register = register if isinstance(register, ShadowTopics) else None
        self._known: Bounded[TopicName, TopicName | None] = Bounded(KNOWN_MAX)

    async def source_of(self, stored: TopicMap, ledger_id: int) -> TopicName | None:
        """Return the topic whose ledger a broker reads by its shadow's name, None for a ledger of the topic itself.

        Raises NotAllowed (the caller may not read the source), Transient (nobody can say, nor could before).
        """
        if self._register is None or is_held(stored, ledger_id):
            return None
        source = await self._asked(self._register, stored.topic)
        if source is not None:
            check_source(source)
            log.info("ledger.of_source", topic=str(stored.topic), source=str(source), ledger_id=ledger_id)
        return source

    async def _asked(self, register: ShadowTopics, topic: TopicName) -> TopicName | None:
        """Ask Pulsar; raises Transient."""
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
