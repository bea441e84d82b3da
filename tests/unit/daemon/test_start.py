"""The start of a daemon with several services: it waits while none of them answers, and for no single one."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from offloaderd.core.errors import Denied, InvalidConfig, Transient
from offloaderd.daemon import daemon as daemon_module
from offloaderd.daemon.daemon import Daemon
from offloaderd.daemon.settings import Settings
from offloaderd.objects.settings import ObjectsSettings, ServiceSettings
from tests.unit.rigs.rig import until
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offloaderd.core.errors import OffloaderError


class Start:
    """The step of a daemon's start that opens its stores; `errors` are of those that do not answer, by section."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *further: str) -> None:
        self.errors: dict[str, OffloaderError] = {}
        keys = {"access_key": "a", "secret_key": "b"}
        services = {name: ServiceSettings(bucket=f"bucket-{name}", **keys) for name in further}
        objects = ObjectsSettings(bucket="home", services=services, **keys)
        self.daemon = Daemon(Settings(objects=objects), clock=LoopClock())

        async def check(service: ServiceSettings, _: object) -> None:
            if service.section in self.errors:
                raise self.errors[service.section]

        monkeypatch.setattr(daemon_module, "check_places", check)

    async def opened(self) -> bool:
        """Open the stores; whether they are open, and the daemon was not stopped before."""
        async with AsyncExitStack() as stack:
            return await self.daemon._open_objects(stack) is not None

    @property
    def up(self) -> bool:
        """Whether health says that the daemon's own service answers."""
        return any(one.name == "objects" and one.up for one in self.daemon.health.view.dependencies)


def unreachable(logs: Sequence[Mapping[str, str]]) -> set[str]:
    """Return the services that were said to be out of reach."""
    return {one["service"] for one in logs if one["event"] == "service.unreachable"}


@pytest.mark.parametrize("down", ["objects", "objects.services.archive"])
async def test_one_service_that_is_away_holds_up_no_start(down: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is: topics of the others go on. The log names it."""
    start = Start(monkeypatch, "archive")
    start.errors[down] = Transient("gone")
    with capture_logs() as logs:
        assert await start.opened()
    assert unreachable(logs) == {down}


async def test_a_daemon_waits_while_no_service_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not do anything."""
    start = Start(monkeypatch, "archive", "nas")
    for name in ("objects", "objects.services.archive", "objects.services.nas"):
        start.errors[name] = Transient("gone")
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(start.opened())
        await until(lambda: any(not one.up for one in start.daemon.health.view.dependencies))
        assert not start.up
        del start.errors["objects.services.nas"]
        assert await opening


async def test_a_daemon_with_one_service_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it always did."""
    start = Start(monkeypatch)
    start.errors["objects"] = Transient("gone")
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(start.opened())
        await until(lambda: any(not one.up for one in start.daemon.health.view.dependencies))
        start.errors.clear()
        assert await opening
    assert start.up


async def test_rights_that_are_missing_in_the_first_service_are_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the settings, which no waiting mends."""
    start = Start(monkeypatch, "archive")
    start.errors["objects"] = Denied("no right", hint="give it")
    with pytest.raises(InvalidConfig, match="no right"):
        await start.opened()
