"""Shadow topics (PIP-180): a broker reads by the shadow's name what the topic behind it has offloaded.

The shadow's list has the ledgers of its source, and the driver hears no name but the shadow's: neither the recorded
metadata nor the attempt's id tells it another one. So Pulsar's own word is asked, a property of the shadow's list. An
id would be a key to the ledger of whatever topic it belongs to; here the caller needs the role for the source as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from offloaderd.errors import NotFound
from offloaderd.ledgers.port import ShadowTopics
from offloaderd.offload.closed_ledger import is_held
from offloaderd.rpc.gate import check_source

if TYPE_CHECKING:
    from offloaderd.metadata.catalog import TopicMap
    from offloaderd.model import TopicName

log = structlog.get_logger(__name__)


async def source_of(register: object, stored: TopicMap, ledger_id: int) -> TopicName | None:
    """Return the topic whose ledger a broker reads by its shadow's name, None for a ledger of the topic itself.

    `register` is Pulsar's list, if it can be read. Raises NotAllowed (the caller may not read the source), Transient.
    """
    if not isinstance(register, ShadowTopics) or is_held(stored, ledger_id):
        return None
    try:
        source = await register.source_topic(stored.topic)
    except NotFound:
        return None
    if source is not None:
        check_source(source)
        log.info("ledger.of_source", topic=str(stored.topic), source=str(source), ledger_id=ledger_id)
    return source
