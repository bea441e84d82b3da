"""When Python looks for cycles of objects in a process of tests; a pytest plugin."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

OBJECTS_BETWEEN_COLLECTIONS = 10_000
"""Tests leave few cycles: at Python's 700, looking for them is a tenth of what unit tests take."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Pass over what stays until the end: all that was imported, and the tests themselves."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, 10, 5)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Look for cycles before a state machine of Hypothesis, which parses its class.

    Python before 3.11.5 fails if something parses meanwhile, as a finalizer does that writes a traceback (gh-106905).
    """
    if item.name == "runTest":
        gc.collect()
