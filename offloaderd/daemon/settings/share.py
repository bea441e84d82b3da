"""One of several processes of a host: its share of the host's settings, and where it is reached.

What a host has once is divided: memory and disks; each process has a directory of its own there. Rates, connections and
calls are as in the settings for each process.
"""

from dataclasses import dataclass
from pathlib import Path

from offloaderd.daemon.settings.sections import Settings

DIVIDED = {
    "memory": ("buffer_bytes", "upload_bytes", "cache_bytes", "unpack_bytes"),
    "cache": ("disk_bytes",),
    "spill": ("bytes_max",),
}
"""Settings that are divided by daemon.processes, by section."""

OWN_DIRECTORIES = ("cache", "spill")
"""Sections with a directory in which each process has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process by its number, from 1 to `count`; `port` is the one that all share, `directory` has their sockets."""

    number: int
    count: int
    port: int
    directory: Path

    @property
    def socket(self) -> Path:
        """The Unix socket of its HTTP server."""
        return socket_of(self.directory, self.number)

    @property
    def others(self) -> list[Path]:
        """Sockets of the other processes."""
        return [socket_of(self.directory, one) for one in range(1, self.count + 1) if one != self.number]


def socket_of(directory: Path, number: int) -> Path:
    """Return the Unix socket of a process's HTTP server."""
    return directory / str(number)


def port_of(settings: Settings, number: int) -> int:
    """Return the port that a process has for itself; 0 is any free one."""
    first = settings.grpc.process_port
    return first + number if first else 0


def divided(settings: Settings) -> Settings:
    """Return the settings with an equal share of what is divided."""
    count = settings.daemon.processes
    sections = {}
    for section, names in DIVIDED.items():
        whole = getattr(settings, section)
        sections[section] = whole.model_copy(update={name: getattr(whole, name) // count for name in names})
    return settings.model_copy(update=sections)


def share_of(settings: Settings, number: int) -> Settings:
    """Return the settings of one process: those of a daemon of its own. A host with one process has none to share."""
    if settings.daemon.processes == 1:
        return settings
    share = divided(settings)
    own = {"id": f"{settings.daemon.id}.{number}", "processes": 1}
    sections = {
        "daemon": share.daemon.model_copy(update=own),
        "grpc": share.grpc.model_copy(update={"port": port_of(settings, number)}),
    }
    for name in OWN_DIRECTORIES:
        section = getattr(share, name)
        if section.directory is not None:
            directory = str(Path(section.directory) / f"process-{number}")
            sections[name] = section.model_copy(update={"directory": directory})
    return share.model_copy(update=sections)
