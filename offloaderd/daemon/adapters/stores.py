"""Where the settings say that things are, for the daemon, for commands and for jobs. Nothing waits here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.upkeep.stored import Site

if TYPE_CHECKING:
    from offloaderd.daemon.settings import Settings
    from offloaderd.metadata.port import SessionObserver


def metadata_store(settings: Settings, observer: SessionObserver = lambda _: None) -> ZooKeeperStore:
    """Return the metadata store; entering it raises Transient when no server answers.

    `observer` hears of every change of the session's state.
    """
    options = settings.metadata
    return ZooKeeperStore(options.servers, f"{options.root}/{settings.daemon.cluster}", options, observer=observer)


def sites(settings: Settings) -> list[Site]:
    """Return what is looked after: what committed segments say of where they lie has to agree with it."""
    cluster = settings.daemon.cluster
    return [Site(cluster=cluster, bucket=place.bucket, prefix=place.prefix) for place in settings.objects.all_places]
