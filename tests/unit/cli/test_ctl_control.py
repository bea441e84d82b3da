"""offloadctl reload, log-level, topics pause and resume: what they ask, what they show, and their documents."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from offloaderd.protocol.v1 import control_pb2, control_pb2_grpc
from tests.unit.cli.conftest import Ctl

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "persistent://public/default/orders"


class Control(control_pb2_grpc.ControlServiceServicer):
    """Answers with what it is told."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.reloaded = control_pb2.ReloadResponse(daemon_id="d-1")
        self.levels = control_pb2.LogLevels(
            levels=[
                control_pb2.ModuleLevel(level="info"),
                control_pb2.ModuleLevel(module="offloaderd.read", level="debug", left_s=90),
            ]
        )
        self.paused = control_pb2.PauseTopicResponse(
            topics=[control_pb2.PausedTopic(topic=TOPIC, paused_ms=1_700_000_000_000, paused_by="me", changed=True)]
        )

    def Reload(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802 - as gRPC types and names it
        """Answer with the changes."""
        self.requests.append(request)
        return self.reloaded

    def ListLogLevels(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802
        """Answer with the levels."""
        self.requests.append(request)
        return self.levels

    def SetLogLevel(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802
        """Answer with the levels."""
        self.requests.append(request)
        return self.levels

    def PauseTopic(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802
        """Answer with the topics."""
        self.requests.append(request)
        return self.paused


@pytest.fixture
def control() -> Iterator[Control]:
    """The service on a free port, with its address in `address`."""
    server, service = grpc.server(ThreadPoolExecutor(2)), Control()
    control_pb2_grpc.add_ControlServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call, unused-ignore]
    service.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"  # type: ignore[attr-defined]
    server.start()
    try:
        yield service
    finally:
        server.stop(None).wait()


@pytest.fixture
def ctl(control: Control) -> Ctl:
    """The command, asking that service."""
    return Ctl(control.address)  # type: ignore[attr-defined]


def test_a_reload_says_of_each_setting_what_became_of_it(ctl: Ctl, control: Control) -> None:
    """What is in effect, and what needs a restart, named once more on stderr; a rehearsal says `would`."""
    control.reloaded.changes.add(key="log.level", old='"info"', new='"debug"')
    control.reloaded.changes.add(key="grpc.port", old="7650", new="7777", needs_restart=True)
    answer = ctl("reload")
    assert answer.code == 0
    lines = [line.split() for line in answer.out.splitlines()]
    assert lines[1] == ["log.level", '"info"', '"debug"', "in", "effect"]
    assert lines[2][-3:] == ["needs", "a", "restart"]
    assert "restart d-1 for grpc.port" in answer.err
    assert "would take effect" in ctl("reload", "--dry-run").out
    assert [one.dry_run for one in control.requests] == [False, True]
    assert ctl("reload", "--json").json["changes"][1] == {
        "key": "grpc.port",
        "old": "7650",
        "new": "7777",
        "needs_restart": True,
    }


def test_a_reload_that_finds_nothing_says_so(ctl: Ctl) -> None:
    """One line."""
    assert ctl("reload").out == "d-1: nothing has changed\n"


def test_levels_are_shown_and_set_for_a_while(ctl: Ctl, control: Control) -> None:
    """Ten minutes unless told otherwise; --reset takes back."""
    assert ctl("log-level").out.splitlines()[1].split() == ["(all", "others)", "info", "-"]
    for words, seconds in ((("read", "debug"), 600), (("read", "debug", "--for", "1.5h"), 5400)):
        assert ctl("log-level", *words).code == 0
        request = control.requests[-1]
        assert (request.module, request.level, request.seconds) == ("read", "debug", seconds)
    ctl("log-level", "read", "--reset")
    assert control.requests[-1].level == ""
    assert ctl("log-level", "--json").json == {
        "levels": [
            {"module": None, "level": "info", "left_s": None},
            {"module": "offloaderd.read", "level": "debug", "left_s": 90.0},
        ]
    }


@pytest.mark.parametrize(
    "words",
    [("read",), ("--reset",), ("read", "debug", "--reset"), ("read", "loud"), ("read", "debug", "--for", "soon")],
)
def test_half_a_level_is_a_mistake(ctl: Ctl, control: Control, words: tuple[str, ...]) -> None:
    """Nothing is asked of the daemon."""
    assert ctl("log-level", *words).code == 2
    assert not control.requests


def test_a_topic_is_paused_and_resumed(ctl: Ctl, control: Control) -> None:
    """The request says which; the answer says since when, and whether it was so already."""
    answer = ctl("topics", "pause", "orders")
    assert answer.out == f"{TOPIC}: paused since 2023-11-14 22:13:20 UTC\n"
    assert (control.requests[-1].topic, control.requests[-1].undo) == (TOPIC, False)
    assert "would be paused" in ctl("topics", "pause", "orders", "--dry-run").out
    assert ctl("topics", "pause", "orders", "--json").json["topics"][0]["paused_by"] == "me"
    control.paused.topics[0].paused_ms = 0
    control.paused.topics[0].changed = False
    assert ctl("topics", "resume", "orders").out == f"{TOPIC}: was already going on\n"
    assert control.requests[-1].undo
