"""The data source format("offload"), in batches and as a stream."""

from offloaderd.spark.source.source import SegmentSource, register

__all__ = ["SegmentSource", "register"]
