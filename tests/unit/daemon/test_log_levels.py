"""Levels of modules: for a while or for good, by their full or short name, and never where secrets would show."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

import pytest
import structlog

from offloaderd.access.audit import LOGGER
from offloaderd.core.errors import InvalidInput
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.daemon import log
from offloaderd.daemon.log import known_module, parsed_levels
from offloaderd.daemon.log_levels import LogLevels, ModuleLevel
from offloaderd.daemon.reload import Reloader
from offloaderd.daemon.settings import load
from offloaderd.daemon.settings.rules import doubtful
from offloaderd.daemon.settings.sections import LogSettings
from offloaderd.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TAILER = "offloaderd.topic.tailer"


@pytest.fixture(autouse=True)
def standard_levels() -> Iterator[None]:
    """Leave the process's loggers as they were."""
    root = logging.getLogger().level
    yield
    log.set_levels("warning", {})
    logging.getLogger().setLevel(root)


def writes(name: str) -> str:
    """Return the least level that a logger writes."""
    return logging.getLevelName(logging.getLogger(name).getEffectiveLevel()).lower()


@pytest.fixture
def levels() -> LogLevels:
    """The levels of a daemon whose settings speak of one module."""
    return LogLevels(LogSettings(levels=("read warning",)), FakeClock(), Metrics())


def clock_of(levels: LogLevels) -> FakeClock:
    """Return the clock that a test owns."""
    clock = levels._clock
    assert isinstance(clock, FakeClock)
    return clock


async def test_a_level_falls_back_by_itself(levels: LogLevels) -> None:
    """The module and all below it write more for as long as was asked for; others do not."""
    clock = clock_of(levels)
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(levels.keep())
        await clock.advance(1)
        levels.raised("offload", "debug", 600)
        assert (writes(TAILER), writes("offloaderd.api.gate")) == ("debug", "info")
        assert levels.shown() == [
            ModuleLevel("", "info"),
            ModuleLevel("offloaderd.read", "warning"),
            ModuleLevel("offloaderd.topic", "debug", 600),
        ]
        await clock.advance(599)
        assert writes(TAILER) == "debug"
        await clock.advance(2)
        assert writes(TAILER) == "info"
        assert writes("offloaderd.read.plan") == "warning"
        levels.raised(TAILER, "error", 60)
        keeping.cancel()
    assert writes(TAILER) == "info"


def test_what_was_asked_for_can_be_taken_back_at_once(levels: LogLevels) -> None:
    """And is told when there is nothing to take back."""
    levels.raised("kazoo", "debug", 60)
    assert writes("kazoo.client") == "debug"
    levels.fallen("kazoo")
    assert writes("kazoo.client") == "warning"
    with pytest.raises(InvalidInput, match="no level was set for kazoo"):
        levels.fallen("kazoo")


def test_new_settings_leave_alone_what_was_asked_for_a_while(levels: LogLevels) -> None:
    """The nearest word counts: somebody looks for something right now."""
    levels.raised("read", "debug", 60)
    levels.prepare(LogSettings(level="error", levels=("read info", "offload info")))()
    assert (writes("offloaderd.read"), writes("offloaderd.topic"), writes("offloaderd.api")) == (
        "debug",
        "info",
        "error",
    )
    levels.fallen("read")
    assert writes("offloaderd.read") == "info"


@pytest.mark.parametrize(
    ("module", "level", "seconds", "words"),
    [
        ("topic.taler", "debug", 60.0, "no module"),
        ("../etc", "debug", 60.0, "no module"),
        ("offload", "loud", 60.0, "no level"),
        ("botocore.auth", "debug", 60.0, "signed headers"),
        ("offload", "debug", 0.0, "up to 7 days"),
        ("offload", "debug", float("nan"), "up to 7 days"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    levels: LogLevels, module: str, level: str, seconds: float, words: str
) -> None:
    """With what was wrong; nothing has changed."""
    with pytest.raises(InvalidInput, match=words):
        levels.raised(module, level, seconds)
    assert len(levels.shown()) == 2


def test_the_audit_log_is_written_whatever_the_levels() -> None:
    """Also of the package that it lies in."""
    log.set_levels("error", {"offloaderd": "error"})
    assert writes(LOGGER) == "info"
    with pytest.raises(InvalidInput, match="audit log is written"):
        parsed_levels(["audit error"])


def test_a_module_may_be_called_by_its_short_name() -> None:
    """Packages, modules and libraries."""
    assert known_module("topic") == known_module("offload") == known_module("offloaderd.topic") == "offloaderd.topic"
    assert known_module("rpc.gate") == "offloaderd.api.gate"
    assert known_module("ledgers.bookkeeper") == "offloaderd.bookkeeper"
    assert known_module("ledgers.embedded") == "offloaderd.ledgers.embedded"
    assert known_module("grpc.aio") == "grpc.aio"


def test_a_module_that_an_upgrade_moved_stops_no_daemon(tmp_path: Path) -> None:
    """Its level is left out with a warning and the likely module, at the check, at the start and at a reload."""
    path = tmp_path / "offloaderd.toml"
    path.write_text(
        '[objects]\nbucket = "offload"\n[log]\nlevels = ["offload.adoption debug", "read info", "topci info"]\n'
    )
    settings = load(path, {})
    assert parsed_levels(settings.log.levels) == {"offloaderd.read": "info"}
    warned = [
        (f"log.levels: there is no module {old!r} that logs, so this level changes nothing", f"did you mean {new}?")
        for old, new in (("offload.adoption", "history.adoption"), ("topci", "topic"))
    ]
    assert [one for one in doubtful(settings) if one[0].startswith("log.levels")] == warned
    with structlog.testing.capture_logs() as lines:
        reloader = Reloader(settings, partial(load, path, {}), FakeClock(), Metrics())
        reloader.connect(lambda _: lambda: None)
        reloader.reload(by="test")
    assert [line["setting"] for line in lines if line["event"] == "settings.module_unknown"] == 2 * [
        what for what, _ in warned
    ]
