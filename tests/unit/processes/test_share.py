"""What each of several processes has of the settings of its host."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloaderd.core.errors import InvalidConfig
from offloaderd.daemon.reload import changes, followed
from offloaderd.daemon.settings import Settings, load
from offloaderd.daemon.settings.rules import broken_rules
from offloaderd.daemon.settings.share import Process, share_of

MiB = 1024**2


def host(**more: str) -> Settings:
    """Return the settings of a host with four processes, and some of them otherwise."""
    values = {
        "DAEMON__ID": "host",
        "DAEMON__PROCESSES": "4",
        "OBJECTS__BUCKET": "pulsar",
        "CACHE__DIRECTORY": "/cache",
        "SPILL__DIRECTORY": "/spill",
        "MEMORY__BUFFER_BYTES": "400MiB",
        **more,
    }
    return load(None, {f"OFFLOADERD__{name}": value for name, value in values.items()})


def test_what_a_host_has_once_is_divided_and_the_rest_is_each_processes_own() -> None:
    """Memory and disk; a rate or a number of calls goes with the work that a process does."""
    whole = host(BOOKKEEPER__BYTES_PER_S="100MiB")
    share = share_of(whole, 3)
    assert (share.daemon.id, share.grpc.port) == ("host.3", whole.grpc.process_port + 3)
    assert share.memory.buffer_bytes == 100 * MiB
    assert share.memory.budget_bytes * 4 == whole.memory.budget_bytes
    assert share.cache.disk_bytes * 4 == whole.cache.disk_bytes
    assert share.spill.bytes_max * 4 == whole.spill.bytes_max
    assert (share.cache.directory, share.spill.directory) == ("/cache/process-3", "/spill/process-3")
    assert share.bookkeeper == whole.bookkeeper
    assert share.grpc.calls_max == whole.grpc.calls_max
    assert not broken_rules(share)


def test_a_reload_divides_new_settings_as_well() -> None:
    """A share is compared with a share; the number of processes is the parent's."""
    old, new = (share_of(host(MEMORY__UPLOAD_BYTES=text), 1) for text in ("128MiB", "256MiB"))
    assert [(one.key, one.new) for one in changes(old, new)] == [("memory.upload_bytes", '"64MiB"')]
    assert followed(old, new).memory.upload_bytes == 64 * MiB


def test_directories_that_are_not_set_stay_so() -> None:
    """Nothing is cached in a directory called None."""
    share = share_of(load(None, {"OFFLOADERD__OBJECTS__BUCKET": "pulsar", "OFFLOADERD__DAEMON__PROCESSES": "2"}), 1)
    assert (share.cache.directory, share.spill.directory) == (None, None)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"LEDGERS__KIND": "embedded"}, 'ledgers.kind = "embedded" is a database of one: set it to 1'),
        (
            {"DAEMON__PROCESSES": "8"},
            "memory.upload_bytes = 16MiB must hold 3 parts .* divided by daemon.processes = 8",
        ),
        ({"GRPC__PROCESS_PORT": "7648"}, "ports 7649 to 7652 are those of the processes"),
        ({"GRPC__PROCESS_PORT": "65533"}, "grpc.process_port = 65533 and 4 more is beyond 65535"),
    ],
)
def test_settings_that_several_processes_cannot_share_are_mistakes(more: dict[str, str], words: str) -> None:
    """Before anything is started; with one process the same settings are good."""
    with pytest.raises(InvalidConfig, match=words):
        host(**more)
    alone = host(**{**more, "DAEMON__PROCESSES": "1"})
    assert share_of(alone, 1) is alone


def test_any_free_ports_are_taken_where_they_are_not_set() -> None:
    """Each process is asked for its own."""
    assert share_of(host(GRPC__PROCESS_PORT="0"), 2).grpc.port == 0


def test_a_process_knows_the_sockets_of_the_others() -> None:
    """By their numbers, in the parent's directory."""
    process = Process(number=2, count=3, port=7650, directory=Path("/run"))
    assert process.socket == Path("/run/2")
    assert process.others == [Path("/run/1"), Path("/run/3")]
