"""Reading the settings again: all or nothing, every mistake, what waits for a restart, metrics and the audit log."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import structlog

from offloaderd.core.errors import Conflict, InvalidConfig
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.daemon.reload import Reloader
from offloaderd.daemon.settings import load
from offloaderd.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offloaderd.daemon.settings import Settings


class Site:
    """A settings file, who follows it, and a reloader between them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock, self.metrics = FakeClock(), Metrics()
        self.told: list[Settings] = []
        self.refusal: InvalidConfig | None = None
        self.write("")
        self.reloader = Reloader(load(path, {}), partial(load, path, {}), self.clock, self.metrics)
        self.reloader.connect(self.prepare)

    def write(self, text: str) -> None:
        """Have the file say this, and where the bucket is."""
        self.path.write_text(f'[objects]\nbucket = "offload"\n{text}')

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Note what is to be followed, unless it is refused."""
        if self.refusal is not None:
            raise self.refusal
        return partial(self.told.append, settings)

    def metric(self, name: str, **labels: str) -> float | None:
        """Return a metric's value."""
        return self.metrics.registry.get_sample_value(f"offloaderd_{name}", labels)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A daemon's settings as it was started with them."""
    return Site(tmp_path / "offloaderd.toml")


async def test_what_changed_is_followed_or_waits_for_a_restart(site: Site) -> None:
    """Both are named, the second each time until there was a restart."""
    await site.clock.advance(5)
    site.write('[memory]\nbuffer_bytes = "64MiB"\n[grpc]\nport = 7777\n')
    found = site.reloader.reload(by="test")
    assert [one.key for one in found.live] == ["memory.buffer_bytes"]
    assert [one.key for one in found.waiting] == ["grpc.port"]
    (told,) = site.told
    assert (told.memory.buffer_bytes, told.grpc.port) == (64 << 20, 7650)
    assert site.reloader.settings is told
    assert site.metric("reload_waiting_settings") == 1
    assert site.metric("reloads_total", outcome="done") == 1
    assert site.metric("reload_timestamp_seconds") == site.clock.wall_ms() / 1000
    again = site.reloader.reload(by="test")
    assert [one.key for one in again.changes] == ["grpc.port"]
    site.write('[memory]\nbuffer_bytes = "64MiB"\n')
    assert site.reloader.reload(by="test").changes == ()
    assert site.metric("reload_waiting_settings") == 0


def test_a_rehearsal_changes_nothing(site: Site) -> None:
    """It says the same, and is told in the audit log as what it is."""
    site.write('[log]\nlevel = "debug"\n')
    with structlog.testing.capture_logs() as lines:
        found = site.reloader.reload(by="test", dry_run=True)
    assert [one.key for one in found.live] == ["log.level"]
    assert not site.told
    assert site.reloader.settings.log.level == "info"
    assert [(line["event"], line["outcome"]) for line in lines] == [("audit.reload", "planned")]


def test_anything_wrong_refuses_all_of_it_with_every_mistake(site: Site) -> None:
    """What was right beside it does not hold either, and the metric says that the next start would fail."""
    site.write('[memory]\nbuffer_bytes = "64MiB"\nupload_bytes = "1KiB"\n[log]\nlevel = "loud"\n[grpc]\nprot = 1\n')
    with structlog.testing.capture_logs() as lines, pytest.raises(InvalidConfig) as caught:
        site.reloader.reload(by="test")
    assert "3 mistakes" in caught.value.message
    for words in ("memory.upload_bytes", "log.level", "grpc.prot"):
        assert words in caught.value.message
    assert not site.told
    assert site.reloader.settings.memory.buffer_bytes == 256 << 20
    assert (site.metric("reload_success"), site.metric("reloads_total", outcome="refused")) == (0, 1)
    assert [(line["event"], line["outcome"], line["by"]) for line in lines] == [("audit.reload", "refused", "test")]
    site.write("")
    site.reloader.reload(by="test")
    assert site.metric("reload_success") == 1


def test_what_a_part_refuses_refuses_all_of_it(site: Site) -> None:
    """A token key that cannot be used, for instance: nobody is told of anything."""
    site.write('[log]\nlevel = "debug"\n')
    site.refusal = InvalidConfig("no such key file")
    with pytest.raises(InvalidConfig, match="no such key file"):
        site.reloader.reload(by="test")
    assert not site.told
    assert site.reloader.settings.log.level == "info"


def test_the_audit_log_says_what_changed_without_secrets(site: Site) -> None:
    """Old and new value of each setting, and who asked."""
    site.write('access_key = "key"\nsecret_key = "canary"\n[read]\nreaders_max = 9\n')
    with structlog.testing.capture_logs() as lines:
        site.reloader.on_signal()
    (told,) = [line for line in lines if line["event"] == "audit.reload"]
    assert (told["by"], told["changed"]) == ("SIGHUP", ["read.readers_max: 256 -> 9"])
    assert len(told["restart"]) == 2
    assert "canary" not in str(lines)


def test_a_signal_raises_at_nobody(site: Site) -> None:
    """What is wrong is in the log."""
    site.write("[log]\nlevel = 3\n")
    with structlog.testing.capture_logs() as lines:
        site.reloader.on_signal()
    assert [line["event"] for line in lines] == ["audit.reload", "settings.not_reloaded"]


def test_a_daemon_without_a_file_or_that_is_not_there_yet_says_so(site: Site) -> None:
    """Neither follows anything."""
    for reread, words in ((None, "settings file"), (partial(load, site.path, {}), "still starting")):
        with pytest.raises(Conflict, match=words):
            Reloader(site.reloader.settings, reread, site.clock, Metrics()).reload(by="test")
