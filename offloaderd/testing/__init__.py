"""Test kit for offloaderd, and for programs that build on it: a clock under the test's control, builders of entries."""

from offloaderd.testing.builders import batch, flights, payloads
from offloaderd.testing.clock import FakeClock

__all__ = ["FakeClock", "batch", "flights", "payloads"]
