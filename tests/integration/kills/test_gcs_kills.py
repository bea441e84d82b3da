"""SIGKILL at the requests of an upload to Google Cloud Storage: nothing is lost, left behind, or sent twice.

The server is in the test's process, so it can end the daemon at exactly one request of those that make one call of the
port. The points between calls are those of `test_kill_points.py`.
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import TopicName
from offloaderd.objects.gcs import uploads
from tests.gcs_server import GcsServer, Refusal, gcs_server
from tests.integration.processes import DaemonProcess, Site
from tests.real.mortal import dies
from tests.real.proof import ends_well
from tests.real.workload import Workload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


TOPIC = TopicName.parse("public/default/killed")
BUCKET = "segments"
ENTRIES, ENTRY_BYTES = 400, 40_000
"""Enough for one segment that is full, of three parts, and one that is not."""


def site_at(directory: Path, zookeeper: str, endpoint: str, bucket: str) -> Site:
    """A site whose segments have several parts in Google Cloud Storage."""
    site = Site(directory, zookeeper, endpoint, "", "", bucket)
    site.settings["objects"] = {"kind": "gcs"}
    site.settings["ledgers"] = {"ledger_entries_max": 170}
    site.settings["offload"] = {"segment_bytes_max": 12 << 20, "block_bytes": 256 << 10, "part_bytes": 5 << 20}
    return site


@pytest.fixture
async def server() -> AsyncIterator[GcsServer]:
    """The server, with an empty bucket."""
    async with gcs_server(BUCKET) as server:
        yield server


POINTS = {
    "its first object was stored": ("InsertObject", r"/upload"),
    "a part was stored": ("InsertObject", r"/00002"),
    "its parts are about to be composed": ("before ComposeObjects", ""),
    "its parts were composed": ("ComposeObjects", ""),
    "its first object was deleted": ("DeleteObject", r"/upload"),
    "a part was deleted": ("DeleteObject", r"/0000[123]"),
}
"""The request at which the daemon ends: its operation, and the end of its key."""


def killing(server: GcsServer, daemon: DaemonProcess, point: str) -> None:
    """Have the server end the daemon at the first request of that kind."""
    operation, key = POINTS[point]
    moment, _, operation = operation.rpartition(" ")
    left = [True]

    def reached(asked: str, of: str) -> bool:
        found = bool(left) and asked == operation and re.search(f"{key}$" if key else "", of) is not None
        if found:
            left.clear()
            daemon.signal(signal.SIGKILL)
        return found

    if moment == "before":
        server.before = lambda asked, of: Refusal(503, "backendError", "killed") if reached(asked, of) else None
    else:
        server.after = reached


WITNESS = "its parts were composed"


@pytest.mark.parametrize(
    "point", [pytest.param(one, marks=[pytest.mark.witness("zookeeper")] if one == WITNESS else []) for one in POINTS]
)
async def test_a_daemon_that_dies_in_an_upload(server: GcsServer, tmp_path: Path, zookeeper: str, point: str) -> None:
    """The next one completes what is stored: no part twice, no object of an upload left, every entry as it was."""
    site = site_at(tmp_path, zookeeper, server.endpoint, BUCKET)
    workload = Workload(TOPIC, entry_bytes=ENTRY_BYTES)
    daemon = DaemonProcess(site)
    killing(server, daemon, point)
    await dies(daemon, workload, entries=ENTRIES)
    server.before = server.after = None
    assert not (await ends_well(site, workload)).collected
    assert not [key for key in server.buckets[BUCKET] if key.startswith(uploads.ROOT)]
    parts = {key: count for key, count in server.inserted.items() if re.search(r"/\d{5}$", key)}
    assert len(parts) >= 2
    assert set(parts.values()) == {1}
