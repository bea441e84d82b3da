"""What the probes tell of the dependencies: whether they answer, and whether the bucket takes what is written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from offloaderd.core.errors import Denied, OffloaderError
from offloaderd.core.health import Dependency, Health
from offloaderd.daemon import stores as probes
from offloaderd.daemon.stores import PROBE_S, Ledgers, Prober
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.objects.buckets import Buckets

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pytest

    from offloaderd.objects.port import ObjectInfo


async def test_a_bucket_that_takes_nothing_is_down_though_it_can_be_reached() -> None:
    """Others can do no better with it, so that topics stay; it is up once it takes something again."""
    clock, reached = FakeClock(), list[OffloaderError | None]()
    health, why = Health(clock.wall_ms), ""
    prober = Prober(health, clock, probed=lambda _, error: reached.append(error), refused=lambda _: why)
    up, metadata = Dependency("objects", up=True), Dependency("metadata", up=True)
    async with MemoryTree().connect() as tree, asyncio.TaskGroup() as group:
        running = group.create_task(prober.run(tree, MemoryStore(clock), Ledgers()))
        await clock.advance(1)
        assert health.view.dependencies == (metadata, up)
        why, since_ms = "no space left", clock.wall_ms() + round((PROBE_S - 1) * 1000)
        await clock.advance(2 * PROBE_S)
        assert health.view.dependencies == (metadata, Dependency("objects", up=False, message=why, since_ms=since_ms))
        why = ""
        await clock.advance(PROBE_S)
        assert health.view.dependencies == (metadata, up)
        assert set(reached) == {None}
        running.cancel()


class Hanging(MemoryStore):
    """A bucket that takes requests and never answers."""

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Wait for ever."""
        await asyncio.get_running_loop().create_future()
        yield await self.head(prefix)


async def test_what_hangs_is_told_within_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have answered just before, and what a page shows may be 2 s old."""
    assert PROBE_S + probes.ANSWERS_S + 2 <= 10
    monkeypatch.setattr(probes, "ANSWERS_S", 0.01)
    clock, told = FakeClock(), asyncio.Event()
    health = Health(clock.wall_ms)
    probed = lambda _, error: told.set() if error is not None else None  # noqa: E731 - shorter here
    prober = Prober(health, clock, probed=probed, refused=lambda _: "")
    async with MemoryTree().connect() as tree, asyncio.TaskGroup() as group:
        running = group.create_task(prober.run(tree, Hanging(clock), Ledgers()))
        await told.wait()
        assert [(one.name, one.message) for one in health.view.dependencies if not one.up] == [
            ("objects", "no answer within 0.01 s")
        ]
        running.cancel()


class Away(MemoryStore):
    """The bucket of a further service, which refuses while it is `away`."""

    away = True

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Refuse, or list nothing."""
        if self.away:
            raise Denied("no right to archive")
        async for info in super().list(prefix):
            yield info


async def test_a_further_service_is_told_apart_from_the_bucket() -> None:
    """It is shown under its table's name; the bucket is up, so that no topic moves to another daemon."""
    clock, reached = FakeClock(), dict[str, OffloaderError | None]()
    health, archive, why = Health(clock.wall_ms), Away(clock), {"objects": "", "objects.services.archive": ""}
    prober = Prober(health, clock, probed=reached.__setitem__, refused=why.__getitem__)
    services = {"objects.services.archive": "archive"}
    home = Buckets(clock, "home")
    home.add("archive", archive)
    async with MemoryTree().connect() as tree, asyncio.TaskGroup() as group:
        running = group.create_task(prober.run(tree, home, Ledgers(), services))
        await clock.advance(1)
        assert [(one.name, one.message) for one in health.view.dependencies if not one.up] == [
            ("objects.services.archive", "no right to archive")
        ]
        assert reached["objects"] is None
        assert isinstance(reached["objects.services.archive"], Denied)
        archive.away = False
        await clock.advance(PROBE_S)
        assert all(one.up for one in health.view.dependencies)
        assert reached == {"objects": None, "objects.services.archive": None}
        why["objects.services.archive"] = "full"
        await clock.advance(PROBE_S)
        assert [(one.name, one.message) for one in health.view.dependencies if not one.up] == [
            ("objects.services.archive", "full")
        ]
        running.cancel()
