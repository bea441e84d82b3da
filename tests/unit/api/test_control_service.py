"""ControlService: what a reload found, and levels of the log, as messages."""

from __future__ import annotations

from typing import Any

import pytest

from offloaderd.api.daemon import ControlService
from offloaderd.core.errors import InvalidInput
from offloaderd.daemon.log_levels import ModuleLevel
from offloaderd.daemon.reload import Change
from offloaderd.protocol.v1 import control_pb2
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.metadata import MemoryTree

REAL_TIME = "gRPC"

CHANGES = (Change("grpc.port", "1", "2"), Change("log.level", '"info"', '"debug"'))


class Caller:
    """The context of a call."""

    def peer(self) -> str:
        """Return where it comes from."""
        return "ipv4:10.0.0.7:5"


CALLER: Any = Caller()


class Levels:
    """Levels that a test may read."""

    def __init__(self) -> None:
        self.rows = [ModuleLevel("", "info")]

    def raised(self, module: str, level: str, seconds: float) -> ModuleLevel:
        """Add one."""
        self.rows.append(ModuleLevel(module, level, seconds))
        return self.rows[-1]

    def fallen(self, module: str) -> None:
        """Take it back."""
        if module not in [one.module for one in self.rows]:
            raise InvalidInput(f"nothing was asked for {module}")
        del self.rows[1:]


def service() -> tuple[ControlService, list[tuple[str, bool]]]:
    """Return the service of daemon d, and how it was asked to reload."""
    levels, asked = Levels(), list[tuple[str, bool]]()

    def reload(by: str, dry_run: bool) -> tuple[Change, ...]:
        asked.append((by, dry_run))
        return CHANGES

    made = ControlService(
        MemoryTree().connect(),
        FakeClock(),
        daemon_id="d",
        reload=reload,
        shown=lambda: levels.rows,
        raised=levels.raised,
        fallen=levels.fallen,
    )
    return made, asked


async def test_a_reload_names_what_differs_and_what_needs_a_restart() -> None:
    """With who asked for it, and whether it was only a look."""
    control, asked = service()
    found = await control.Reload(control_pb2.ReloadRequest(dry_run=True), CALLER)
    port = control_pb2.SettingChange(key="grpc.port", old="1", new="2", needs_restart=True)
    level = control_pb2.SettingChange(key="log.level", old='"info"', new='"debug"')
    assert found == control_pb2.ReloadResponse(changes=[port, level], dry_run=True, daemon_id="d")
    assert asked == [(CALLER.peer(), True)]


async def test_levels_are_raised_and_fall() -> None:
    """An empty level takes back what was asked; each answer has all of them."""
    control, _ = service()
    ask = control_pb2.SetLogLevelRequest(module="read", level="debug", seconds=5)
    levels = (await control.SetLogLevel(ask, CALLER)).levels
    assert [(one.module, one.level, one.HasField("left_s"), one.left_s) for one in levels] == [
        ("", "info", False, 0),
        ("read", "debug", True, 5),
    ]
    first = await control.ListLogLevels(control_pb2.ListLogLevelsRequest(page_size=1), CALLER)
    rest = control_pb2.ListLogLevelsRequest(page_token=first.next_page_token)
    assert [*first.levels, *(await control.ListLogLevels(rest, CALLER)).levels] == [*levels]
    assert len(first.levels) == 1
    found = await control.SetLogLevel(control_pb2.SetLogLevelRequest(module="read"), CALLER)
    assert [one.module for one in found.levels] == [""]
    assert await control.ListLogLevels(control_pb2.ListLogLevelsRequest(), CALLER) == found
    with pytest.raises(InvalidInput):
        await control.SetLogLevel(control_pb2.SetLogLevelRequest(module="read"), CALLER)
