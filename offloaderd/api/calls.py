"""What the services share: the context of a call, and fast detection of an outage of the metadata store."""

import asyncio
from typing import Any, TypeAlias

from grpc import aio

from offloaderd.core.errors import OffloaderError, Transient
from offloaderd.metadata.port import MetadataStore

Context: TypeAlias = aio.ServicerContext[Any, Any]


ANSWERS_S = 1.0
"""How long a small request may take before the call is answered without the metadata store."""

WAIT = "wait until ZooKeeper is back; reads and status work meanwhile"


async def metadata_error(metadata: MetadataStore) -> str:
    """Return why the metadata store does not answer, empty when it does."""
    try:
        async with asyncio.timeout(ANSWERS_S):
            await metadata.children("/")
    except TimeoutError:
        return f"no answer within {ANSWERS_S:g} s"
    except OffloaderError as error:
        return str(error)
    return ""


def away(failure: str) -> Transient:
    """Return the error of a call about a topic that this daemon does not have in memory."""
    return Transient(
        f"the metadata store does not answer ({failure}), and this daemon does not have the topic in memory",
        hint="ask the daemon that owns it, or wait until ZooKeeper is back",
    )


def needed(failure: str) -> Transient:
    """Return the error of a call that no daemon can answer without the metadata store."""
    return Transient(f"the metadata store does not answer ({failure}), and the call needs it", hint=WAIT)
