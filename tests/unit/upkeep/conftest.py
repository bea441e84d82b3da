"""What most tests of upkeep begin with; those that want more make their own."""

from __future__ import annotations

import pytest

from tests.unit.upkeep.site import Ground, runs


@pytest.fixture
async def ground() -> Ground:
    """A site with a topic that has one committed segment."""
    site = Ground()
    await site.enable()
    await site.segment(1, runs(1, 0, 10))
    return site
