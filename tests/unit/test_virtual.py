"""Virtual time under unit tests hides no failure (tests/virtual.py)."""

from __future__ import annotations

import asyncio

import pytest

from tests.virtual import virtually


def test_a_failure_in_a_callback_ends_the_test() -> None:
    """asyncio would only log it: a test that had reached its time limit there passed."""

    async def wait() -> None:
        async with asyncio.timeout(1):
            await asyncio.to_thread(pytest.fail, "its time is over")

    with pytest.raises(pytest.fail.Exception, match="its time is over"):
        virtually(wait())
