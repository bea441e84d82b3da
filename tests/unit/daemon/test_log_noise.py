"""The log while ZooKeeper is away, and when a scrape's client leaves."""

from __future__ import annotations

import logging

import pytest

from offloaderd.daemon.log import QUIET_S, Noise


def record(name: str, words: str, *, at_s: float = 0.0, level: int = logging.WARNING) -> logging.LogRecord:
    """Make a record of a library."""
    made = logging.LogRecord(name, level, "f", 1, words, ("x",), None)
    made.created = at_s
    return made


def test_the_zookeeper_client_says_each_thing_once_in_a_while() -> None:
    """Some thirteen warnings a second say nothing that the first ones did not."""
    noise = Noise()
    said = [noise.filter(record("kazoo.client", "Connection dropped: %s", at_s=second)) for second in range(30)]
    assert said == [True] + [False] * 29
    assert noise.filter(record("kazoo.client", "Transition to CONNECTING", at_s=1.0))
    assert noise.filter(record("kazoo.client", "Connection dropped: %s", at_s=QUIET_S))
    assert all(noise.filter(record("kazoo.client", "Unhandled", level=logging.ERROR)) for _ in range(3))
    assert all(noise.filter(record("offloaderd.metadata", "metadata.session_lost")) for _ in range(3))


@pytest.mark.parametrize(("error", "written"), [(ConnectionResetError("closing"), False), (ValueError("ours"), True)])
def test_a_client_that_left_is_no_error(error: Exception, written: bool) -> None:
    """A defect of a page still is."""
    made = record("aiohttp.server", "Error handling request from %s", level=logging.ERROR)
    made.exc_info = (type(error), error, None)
    assert Noise().filter(made) is written
