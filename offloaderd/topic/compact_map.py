"""What is committed of a topic, small: for readers of one that sleeps or has lost its claim while ZooKeeper is away.

A map takes some kilobytes a segment, which is what a topic that sleeps frees; packed it takes some hundred bytes. A
topic that wakes is taken up from what is stored, never from this.
"""

import io
import pickle
import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from offloaderd.metadata.topic_map.map import TopicMap

LEVEL = 1
"""Of compression: topics fall asleep by the thousand, and the higher ones save a tenth."""


class KeptMap:
    """A topic's map, packed; some tens of microseconds a segment to make and to look at."""

    __slots__ = ("_packed",)

    def __init__(self, topic_map: TopicMap) -> None:
        packed = io.BytesIO()
        pickler = pickle.Pickler(packed, pickle.HIGHEST_PROTOCOL)
        pickler.dispatch_table = {MappingProxyType: _reduced}  # which pickle does not take by itself
        pickler.dump(topic_map)
        self._packed = zlib.compress(packed.getbuffer(), LEVEL)

    @property
    def packed_bytes(self) -> int:
        """How much it takes."""
        return len(self._packed)

    def map(self) -> TopicMap:
        """Return the map as it was."""
        found = pickle.loads(zlib.decompress(self._packed))  # noqa: S301 - our own values, which never leave the process
        assert isinstance(found, TopicMap)  # noqa: S101 - it was made here
        return found


def _view(values: dict[object, object]) -> Mapping[object, object]:
    return MappingProxyType(values)


def _reduced(view: Mapping[object, object]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return _view, (dict(view),)
