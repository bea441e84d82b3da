"""Maps as readers get them, from the metadata store."""

from offloaderd.core.model import TopicName
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap


class StoredMaps:
    """The maps of the metadata store, not cached."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Load the map."""
        return await catalog.load(self._store, topic)
