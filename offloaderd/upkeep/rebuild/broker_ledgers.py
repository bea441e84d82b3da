"""Ledgers of some topics that brokers have offloaded, from the bucket alone: by labels, index and last block of each.

No object shows whether a broker refers to it; one that a failed try left looks the same. So these ledgers only fill
gaps, and two copies of one ledger fill none.
"""

from collections.abc import Collection
from contextlib import aclosing

import structlog

from offloaderd.core.aio import each
from offloaderd.core.errors import BucketMissing, CorruptData, InvalidInput, NotFound
from offloaderd.core.model import OffloadMethod, TopicName
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.objects import keys
from offloaderd.objects.broker_ledger import verified_index
from offloaderd.objects.keys import ObjectKind
from offloaderd.objects.port import ObjectReader
from offloaderd.upkeep import stored
from offloaderd.upkeep.gc.orphans import WRITER
from offloaderd.upkeep.rebuild.plan import Known
from offloaderd.upkeep.stored import Counts, Site, StoredSegment

log = structlog.get_logger(__name__)

BATCH = 256
DRIVER = "aws-s3"
"""Pulsar's name of its driver for S3; objects do not name their driver."""


async def read(objects: ObjectReader, site: Site, topics: Collection[TopicName]) -> list[Known]:
    """Return the ledgers of these topics that brokers have offloaded; unsound ones are logged and left out.

    Reads the labels of every such object of the site, which is a whole bucket. Raises as the listing, Transient,
    Denied.
    """
    found: list[Known] = []
    batch: list[StoredSegment] = []
    async with aclosing(stored.segments(objects, site, Counts(), with_brokers=True)) as listed:
        async for one in listed:
            if one.may_be_brokers and {ObjectKind.DATA, ObjectKind.INDEX} <= one.objects.keys():
                batch.append(one)
            if len(batch) == BATCH:
                found += await _known(objects, site, topics, batch)
                batch.clear()
    return found + await _known(objects, site, topics, batch)


async def _known(
    objects: ObjectReader, site: Site, topics: Collection[TopicName], batch: list[StoredSegment]
) -> list[Known]:
    async def look(one: StoredSegment) -> Known | None:
        try:
            return await _ledger(objects, site, topics, one)
        except BucketMissing:
            raise
        except (CorruptData, NotFound) as error:
            log.warning("rebuild.broker_object_skipped", key=one.keys.data, error=str(error))
            return None

    return [one for one in await each(list(batch), look) if one is not None]


async def _ledger(objects: ObjectReader, site: Site, topics: Collection[TopicName], one: StoredSegment) -> Known | None:
    """Return a broker's ledger of one of the topics. Raises NotFound, CorruptData."""
    data, objects = one.objects[ObjectKind.DATA], objects.at(site.bucket)
    labels = (await objects.head(data.key)).metadata
    name = labels.get(keys.MANAGED_LEDGER_KEY, "")
    ours = labels.get(keys.SOFTWARE_VERSION_KEY, "").startswith(WRITER)
    if ours or labels.get(keys.CLUSTER_KEY) != site.cluster or one.keys.ledger_id is None:
        return None
    try:
        topic = TopicName.from_managed_ledger(name)
    except InvalidInput:
        return None
    if topic not in topics:
        return None
    index, data_bytes = await verified_index(objects, one.keys, managed_ledger=name)
    ledger = index.ledger()
    segment = CommittedSegment(
        segment_id=one.segment_id,
        slices=(LedgerSlice(one.keys.ledger_id, 0, ledger.lastEntryId, ledger.length),),
        object_bytes=data_bytes,
        assigned_ms=data.modified_ms,
        offloaded_ms=data.modified_ms,
        bucket=site.bucket,
        prefix="",
        method=OffloadMethod.LEDGER_BASED,
        driver=DRIVER,
    )
    return Known(topic=topic, segment=segment, epoch=0, closed={one.keys.ledger_id: ledger.lastEntryId + 1})
