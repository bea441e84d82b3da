"""The log: one JSON object a line for ours and the libraries', UTC, levels, and never a secret."""

from __future__ import annotations

import io
import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from pydantic import SecretStr

from offloaderd.daemon import log
from offloaderd.daemon.log import LIBRARIES

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Put the process-wide configuration back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in LIBRARIES}
    configuration = structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, number in levels.items():
        logging.getLogger(name).setLevel(number)
    structlog.configure(**configuration)
    structlog.contextvars.clear_contextvars()


def fail(error: Exception) -> None:
    """Raise it."""
    raise error


def fail_holding(secret: str) -> None:
    """Raise with a secret among the local variables."""
    raise ValueError(len(secret))


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """Every line of the stream as a JSON object."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_object_with_its_fields() -> None:
    """Event, level, logger, time in UTC, own fields and the bound context."""
    stream = io.StringIO()
    log.configure("info", "json", stream)
    with structlog.contextvars.bound_contextvars(topic="persistent://a/b/c"):
        structlog.get_logger("offloaderd.segment").info("segment.sealed", entries=3, reason="size")
    (event,) = lines(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", event.pop("time"))
    assert event == {
        "event": "segment.sealed",
        "entries": 3,
        "reason": "size",
        "level": "info",
        "logger": "offloaderd.segment",
        "topic": "persistent://a/b/c",
    }


def test_a_warning_leads_to_its_failure() -> None:
    """Also errors with a traceback; what is no warning, and sentences of libraries and of our client, have no page."""
    stream = io.StringIO()
    log.configure("info", "json", stream)
    ours = structlog.get_logger("offloaderd.segment")
    ours.info("segment.sealed")
    ours.warning("upload.retried")
    try:
        fail(ValueError("no"))
    except ValueError:
        ours.exception("topic.stalled")
    structlog.get_logger("offloaderd.audit").critical("audit.reload")
    logging.getLogger("botocore").warning("odd")
    logging.getLogger("offloaderd.client.reading").warning("the daemon reads all of %s", "t")
    assert [one.get("runbook") for one in lines(stream)] == [
        None,
        "docs/failures.md#upload.retried",
        "docs/failures.md#topic.stalled",
        "docs/failures.md#audit.reload",
        None,
        None,
    ]


def test_records_of_libraries_look_the_same() -> None:
    """Arguments are filled in, extras are fields, the context is there."""
    stream = io.StringIO()
    log.configure("info", "json", stream)
    with structlog.contextvars.bound_contextvars(topic="t"):
        logging.getLogger("kazoo.client").warning("lost %s after %d s", "session", 30, extra={"server": "z1"})
    (event,) = lines(stream)
    assert event["event"] == "lost session after 30 s"
    assert (event["logger"], event["level"], event["server"]) == ("kazoo.client", "warning", "z1")
    assert event["topic"] == "t"


@pytest.mark.parametrize(
    ("level", "ours", "theirs"),
    [
        ("debug", ["debug", "info", "warning", "error"], ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"], ["warning", "error"]),
        ("warning", ["warning", "error"], ["warning", "error"]),
        ("error", ["error"], ["error"]),
    ],
)
@pytest.mark.parametrize("library", ["kazoo", "azure.core.pipeline.policies", "google.auth", "msal"])
def test_levels(level: str, ours: list[str], theirs: list[str], library: str) -> None:
    """Ours from the level on; libraries from WARNING on unless one debugs, also one that kept its records to itself."""
    logging.getLogger(library.partition(".")[0]).propagate = False
    stream = io.StringIO()
    log.configure(level, "json", stream)
    for name in ("debug", "info", "warning", "error"):
        getattr(structlog.get_logger("offloaderd.x"), name)("event.seen")
        getattr(logging.getLogger(library), name)("seen")
    events = lines(stream)
    assert [event["level"] for event in events if event["logger"] == "offloaderd.x"] == ours
    assert [event["level"] for event in events if event["logger"] == library] == theirs


def test_the_s3_client_never_logs_at_debug() -> None:
    """There it writes whole signed requests, with the session's token."""
    stream = io.StringIO()
    log.configure("debug", "json", stream)
    logging.getLogger("botocore.auth").debug("x-amz-security-token:hush")
    logging.getLogger("botocore.endpoint").info("seen")
    assert [event["event"] for event in lines(stream)] == ["seen"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_secrets_are_masked_at_any_depth(form: str) -> None:
    """Under every spelling of the key, in lists and mappings, in ours and in a library's record, in a traceback."""
    stream = io.StringIO()
    log.configure("info", form, stream)
    logger = structlog.get_logger("offloaderd.x")
    logger.info("a", secret_key="hush", **{"Secret-Key": "hush", "session_token": "hush", "password": b"hush"})
    logger.info("b", request={"headers": [{"Authorization": "hush", "host": "seen"}]}, deep={"a": ({"token": "hush"},)})
    logger.info("c", settings=SecretStr("hush"))
    logging.getLogger("botocore").warning("d", extra={"secretAccessKey": "hush"})
    try:
        fail_holding("hu" + "sh")
    except ValueError:
        logger.exception("task.crashed")
    text = stream.getvalue()
    assert "hush" not in text
    assert "seen" in text
    assert text.count(log.MASK) >= 7
    assert "ValueError: 4" in text


def test_ordinary_fields_are_left_alone() -> None:
    """Masking is by whole key: a key of an object or a count of tokens is no secret."""
    fields = {"key": "a-uuid", "access_key_id": "AKIA", "tokens_count": 3, "nested": {"keys": ["x"]}}
    assert log.mask_secrets(None, "info", dict(fields)) == fields


def test_exceptions_are_part_of_the_line() -> None:
    """A traceback is a field, not more lines."""
    stream = io.StringIO()
    log.configure("info", "json", stream)
    try:
        fail(RuntimeError("no\nluck"))
    except RuntimeError:
        structlog.get_logger("offloaderd.x").exception("task.crashed", task="tailer")
        logging.getLogger("asyncio").exception("unhandled")
    ours, theirs = lines(stream)
    assert (ours["event"], ours["task"]) == ("task.crashed", "tailer")
    assert ours["exception"].endswith("RuntimeError: no\nluck")
    assert theirs["exception"].endswith("RuntimeError: no\nluck")


def test_anything_can_be_a_field() -> None:
    """Bytes, errors and objects are written as text rather than lost with an error."""
    stream = io.StringIO()
    log.configure("info", "json", stream)
    structlog.get_logger("x").info("odd", data=b"\xff", error=ValueError("no"), item=object, text="é\n")
    (event,) = lines(stream)
    assert (event["error"], event["text"]) == ("no", "é\n")


def test_auto_is_for_people_on_a_terminal_and_json_elsewhere() -> None:
    """The same event in both forms."""
    terminal, file = Terminal(), io.StringIO()
    log.configure("info", "auto", terminal)
    structlog.get_logger("x").info("daemon.started", port=1)
    log.configure("info", "auto", file)
    structlog.get_logger("x").info("daemon.started", port=1)
    assert lines(file)[0]["port"] == 1
    assert "daemon.started" in terminal.getvalue()
    assert "\x1b[" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")


def test_console_without_a_terminal_has_no_colours() -> None:
    """Escape codes would fill a file."""
    stream = io.StringIO()
    log.configure("info", "console", stream)
    structlog.get_logger("x").info("daemon.started", port=1)
    assert "port=1" in stream.getvalue()
    assert "\x1b[" not in stream.getvalue()


def test_the_last_configuration_holds() -> None:
    """Configuring again moves the log, also for loggers that exist and were used, and writes nothing twice."""
    first, second = io.StringIO(), io.StringIO()
    logger = structlog.get_logger("offloaderd.x")
    log.configure("info", "json", first)
    logger.info("one")
    log.configure("error", "json", second)
    logger.info("two")
    logger.error("three")
    assert [event["event"] for event in lines(first)] == ["one"]
    assert [event["event"] for event in lines(second)] == ["three"]


def test_a_renamed_event_has_its_old_name_as_well() -> None:
    """An alert on the old text still fires; other events, and those of libraries, have no further field."""
    stream = io.StringIO()
    log.configure("info", "json", stream)
    structlog.get_logger("offloaderd.x").error("trash.blocked", topic="t")
    structlog.get_logger("offloaderd.x").info("topic.claimed")
    logging.getLogger("offloaderd.y").warning("%d left", 3)
    assert [(one["event"], one.get("event_was")) for one in lines(stream)] == [
        ("trash.blocked", "trash.left"),
        ("topic.claimed", None),
        ("3 left", None),
    ]


def test_inside_of_another_program_warnings_alone_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    """A query of Spark says nothing of its sessions; who has said what to log is not overruled."""
    structlog.reset_defaults()
    log.quieted()
    structlog.get_logger("a").info("metadata.session_started")
    structlog.get_logger("a").warning("metadata.session_lost")
    structlog.get_logger("a").warning("data.read_retried")
    said = capsys.readouterr()
    assert said.out == ""
    assert "session_lost" in said.err
    assert "session_started" not in said.err
    assert "data.read_again" in said.err
    structlog.reset_defaults()
    log.configure("info")
    before = structlog.get_config()
    log.quieted()
    assert structlog.get_config() == before
