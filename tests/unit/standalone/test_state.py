"""What a standalone remembers, and the lock of its directory."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Conflict, InvalidConfig, NotFound, OffloaderError
from offloaderd.standalone import stack, state
from offloaderd.standalone.ports import GRPC_OFFSET
from offloaderd.standalone.state import StandaloneState

if TYPE_CHECKING:
    from pathlib import Path

REAL_TIME = "ports of the machine"

STATE = StandaloneState(
    ports={"grpc": 1_001, "http": 1_002, "s3": 1_003}, bucket="b", access_key="the-key", secret_key="the-secret"
)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    """The same values come back, the addresses follow from them, only the owner may read the file."""
    state.save(tmp_path, STATE)
    assert state.load(tmp_path) == STATE
    assert (STATE.address, STATE.http, STATE.s3_endpoint) == (
        "127.0.0.1:1001",
        "http://127.0.0.1:1002",
        "http://127.0.0.1:1003",
    )
    assert state.address(str(tmp_path)) == STATE.address
    assert stat.S_IMODE((tmp_path / state.FILE_NAME).stat().st_mode) == 0o600


def test_the_secret_does_not_reach_a_log() -> None:
    """Neither key is in the text of the state."""
    assert "the-secret" not in repr(STATE)
    assert "the-key" not in repr(STATE)


def test_an_empty_directory_has_no_state(tmp_path: Path) -> None:
    """A directory that is empty or not there is not found."""
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotFound, match="no standalone in"):
            state.load(directory)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"ports": {"grpc": 1, "http": 2}},
        {"ports": {"grpc": 1, "http": 2, "s3": 70_000}},
        {"ports": {"grpc": 1, "http": 2, "s3": True}},
        {"ports": {"grpc": 1, "http": 2, "s3": "3"}},
        {"ports": []},
        {"secret_key": None},
        {"more": 1},
    ],
)
def test_a_damaged_state_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    """Whatever is wrong in it, the file is named and no value is used."""
    state.save(tmp_path, STATE)
    path = tmp_path / state.FILE_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InvalidConfig, match=r"standalone\.json is damaged"):
        state.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"null", b"{", b'"x"'])
def test_a_file_that_is_no_state_is_named(tmp_path: Path, content: bytes) -> None:
    """Cut off, binary, or other JSON: one kind of error."""
    (tmp_path / state.FILE_NAME).write_bytes(content)
    with pytest.raises(InvalidConfig, match="is damaged"):
        state.load(tmp_path)


def test_a_place_that_is_no_directory_is_an_error_of_ours(tmp_path: Path) -> None:
    """Saving into a file does not raise the system's error."""
    (tmp_path / "file").touch()
    with pytest.raises(OffloaderError):
        state.save(tmp_path / "file", STATE)


def test_the_lock_keeps_others_out_while_it_is_held(tmp_path: Path) -> None:
    """The second one is told which process holds it; afterwards it is free again."""
    assert not state.running(tmp_path)
    with state.locked(tmp_path):
        assert state.running(tmp_path)
        with pytest.raises(Conflict, match=r"another standalone \(process \d+\) is running"), state.locked(tmp_path):
            pytest.fail("two hold it")
    assert not state.running(tmp_path)
    with state.locked(tmp_path):
        pass


def test_looking_does_not_take_the_lock(tmp_path: Path) -> None:
    """Asking whether it runs never makes a start fail."""
    with state.locked(tmp_path):
        pass
    assert not state.running(tmp_path)
    with state.locked(tmp_path):
        assert state.running(tmp_path)


def test_the_first_start_chooses_and_later_ones_remember(tmp_path: Path) -> None:
    """Ports and credentials stay; --new-ports changes the ports and nothing else."""
    clock = SystemClock()
    again, first = stack.remembered(tmp_path, clock, new_ports=False)
    assert not again
    assert len({*first.ports.values()}) == 7
    assert all(port + GRPC_OFFSET < 65_536 for port in first.ports.values())
    assert len(first.secret_key) == 64
    assert stack.remembered(tmp_path, clock, new_ports=False) == (True, first)
    _, other = stack.remembered(tmp_path, clock, new_ports=True)
    assert other.ports != first.ports
    assert (other.access_key, other.secret_key, other.bucket) == (first.access_key, first.secret_key, first.bucket)
    assert state.load(tmp_path) == other


def test_settings_are_the_users_where_the_stack_does_not_decide(tmp_path: Path) -> None:
    """Rolling may be set; ports, servers and credentials may not be taken elsewhere by a stray variable."""
    _, chosen = stack.remembered(tmp_path, SystemClock(), new_ports=False)
    environ = {
        "OFFLOADERD__OFFLOAD__SEGMENT_AGE_MAX_S": "5",
        "OFFLOADERD__OBJECTS__ENDPOINT": "http://elsewhere:1",
        "OFFLOADERD__grpc__host": "0.0.0.0",  # noqa: S104 - must not be taken
        "HOME": "/",
    }
    settings = stack.settings_for(chosen, tmp_path, None, environ)
    assert settings.offload.segment_age_max_s == 5
    assert (settings.grpc.host, settings.grpc.port) == ("127.0.0.1", chosen.ports["grpc"])
    assert settings.objects.endpoint == chosen.s3_endpoint
    assert settings.objects.secret_key is not None
    assert settings.objects.secret_key.get_secret_value() == chosen.secret_key
    assert (settings.ledgers.kind, settings.ledgers.directory) == ("embedded", str(tmp_path / "ledgers"))
    assert settings.metadata.session_timeout_s == 6


def test_a_mistake_in_the_users_settings_is_reported(tmp_path: Path) -> None:
    """All of them, before anything is started."""
    _, chosen = stack.remembered(tmp_path, SystemClock(), new_ports=False)
    with pytest.raises(InvalidConfig, match="2 mistakes"):
        stack.settings_for(chosen, tmp_path, None, {"OFFLOADERD__OFFLOAD__X": "1", "OFFLOADERD__Y__Z": "1"})
