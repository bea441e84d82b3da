"""The drill on a real ZooKeeper and a real S3 server: every promise is tried, and nothing is left or touched."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.daemon.settings import load
from offloaderd.drill import drill, exercises
from offloaderd.drill.drill import PROMISES, Outcome
from offloaderd.drill.exercises import EXERCISES, Exercise
from offloaderd.drill.scratch import Scratch
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.objects.opening import bucket_store
from tests.integration.command_line import ran
from tests.integration.processes import CLOCK, Site

if TYPE_CHECKING:
    from pathlib import Path

    from offloaderd.drill.exercises import Ground
    from tests.servers import S3Server

WORD = "0123456789ab"


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """The settings of a daemon on the test's servers, with a root of its own."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["objects"] = {
        "prefix": "topics/",
        "signed_host": "storage.example",
    }  # the server checks the signature
    site.settings["metadata"] = {"root": f"/{site.cluster}"}
    return site


@pytest.fixture
def scratch(site: Site) -> Scratch:
    """The places of a drill."""
    return Scratch.named(load(None, site.environment(7650, 7651)), WORD)


async def sabotage(ground: Ground) -> str:
    """Delete what was reported durable, as nobody may, and read it."""
    async with bucket_store(ground.scratch.settings.objects, CLOCK) as store:
        await store.delete([info.key async for info in store.list(ground.scratch.prefix)])
    return f"{await ground.read_back()} entries came back although they are gone"


async def test_a_drill_tries_every_promise_and_leaves_nothing(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies beside it in bucket and ZooKeeper stays; a promise that is broken for once is told as broken."""
    monkeypatch.setattr(exercises, "OVERHEAD_S", 80.0)  # a busy machine is no broken promise
    told: list[str] = []
    root = scratch.settings.metadata.root
    broken = Exercise("P1", "Everything is deleted.", sabotage)
    async with (
        bucket_store(scratch.settings.objects, CLOCK) as store,
        ZooKeeperStore(scratch.settings.metadata.servers, root) as records,
    ):
        await store.put("topics/beside", b"x")
        await records.create("/beside", b"x")
        report = await drill.run(scratch, CLOCK, lambda one, _: told.append(one.promise), (*EXERCISES, broken))
        *findings, last = report.findings
        assert [(one.promise, one.found) for one in findings if one.outcome is Outcome.BROKEN] == []
        assert {one.promise for one in findings} == PROMISES.keys()
        assert [one.promise for one in findings if one.outcome is Outcome.NOT_TRIED] == ["P10"]
        assert last.outcome is Outcome.BROKEN
        assert replace(report, findings=findings).sound
        assert not report.sound
        assert sum(report.faults.values()) >= 10
        assert told == [one.promise for one in (*EXERCISES, broken) for _ in range(2)]
        assert [info.key async for info in store.list()] == ["topics/beside"]
        assert [upload.key async for upload in store.list_uploads()] == []
        assert await records.children("/") == ["beside"]
    assert "Left behind: nothing" in report.markdown("now")


async def test_a_rehearsal_does_nothing_and_leftovers_can_be_taken_away(site: Site, scratch: Scratch) -> None:
    """What a drill would do is shown; what one that was killed has left goes by its name, and nothing else."""
    code, out, err = await ran(site, "offloadctl", "drill", "--json")
    assert (code, err) == (0, "")
    assert {one["promise"] for one in json.loads(out)["plan"]} == PROMISES.keys()
    async with (
        bucket_store(scratch.settings.objects, CLOCK) as store,
        ZooKeeperStore(scratch.settings.metadata.servers, scratch.settings.metadata.root) as records,
    ):
        assert [info.key async for info in store.list()] == []
        assert await records.children("/") == []
        for key in ("topics/beside", f"{scratch.prefix}left"):
            await store.put(key, b"x")
        await store.create_upload(f"{scratch.prefix}open")
        for path in ("/beside", f"/{scratch.cluster}", f"/{scratch.cluster}/topics", f"/{scratch.cluster}/topics/t"):
            await records.create(path, b"")
        code, out, err = await ran(site, "offloadctl", "drill", "--clean", WORD)
        assert (code, err) == (0, "")
        assert "2 objects and 3 nodes were taken away" in out
        assert [info.key async for info in store.list()] == ["topics/beside"]
        assert [upload.key async for upload in store.list_uploads()] == []
        assert await records.children("/") == ["beside"]
