"""Async unit tests run in virtual time (tests/virtual.py), unless their module or package says `REAL_TIME = "why"`."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

import pytest

from tests.virtual import CHANCE, UnitLoop

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Give a test the loop that its module asks for."""
    assert isinstance(item, pytest.Function)
    return {"real": asyncio.new_event_loop} if real_time(item.module) else {"virtual": UnitLoop}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Draw the same ids and jitter whenever a test runs."""
    CHANCE.seed(item.nodeid)


def real_time(module: ModuleType) -> str:
    """Return why tests of a module need real time, or nothing."""
    package = importlib.import_module(str(module.__package__))
    return str(getattr(module, "REAL_TIME", "") or getattr(package, "REAL_TIME", ""))
