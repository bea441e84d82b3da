"""What tests of offloaderd, and of programs that build on it, need: a clock that they own, and builders of entries."""

from offloaderd.testing.builders import batch, flights, payloads
from offloaderd.testing.clock import FakeClock

__all__ = ["FakeClock", "batch", "flights", "payloads"]
