"""The log: wide events as one JSON object a line, or coloured text on a terminal; configured here and nowhere else.

Records of the libraries (botocore, kazoo, grpc, asyncio) go through the same renderer. Times are UTC in ISO 8601.
Secrets never get here: values under keys that name them are masked at any depth, tracebacks are printed without
local variables, and the S3 client may not log below INFO, where it writes signed headers. A library's messages are
shown from WARNING on unless the level is debug. Levels by module are checked here; `daemon/log_levels.py` holds them.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from offloaderd.access import audit
from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import LOG_LEVELS
from offloaderd.core.renamed import EVENTS, LOG_MODULES

QUIET_S = 60.0
"""The same message of the ZooKeeper client is not written again within this time."""


class Noise(logging.Filter):
    """Filters repeated messages of libraries, and errors that are no fault of the daemon.

    The ZooKeeper client warns at each try to connect, several times a second during an outage; our own events report
    the state of the session. A client that disconnects in the middle of an answer is no error of the server.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be written."""
        if record.name.startswith("kazoo"):
            return record.levelno != logging.WARNING or self._is_a_change(record)
        if record.name.startswith("aiohttp"):
            return not (record.exc_info and isinstance(record.exc_info[1], ConnectionError))
        return True

    def _is_a_change(self, record: logging.LogRecord) -> bool:
        words = str(record.msg)
        if record.created - self._said.get(words, float("-inf")) < QUIET_S:
            return False
        self._said[words] = record.created
        return True


MASK = "********"
SECRET_KEYS = frozenset({
    "accesskey", "authorization", "credential", "credentials", "password", "passwd", "secret", "secretaccesskey",
    "secretkey", "sessiontoken", "token", "xamzsecuritytoken",
})  # fmt: skip
"""Compared without case, dashes and underscores."""

DEPTH_MAX = 6
OLD_EVENTS = {new: old for old, new in EVENTS.items()}
_own: set[str] = set()  # modules that have a level of their own, as set here


def configure(
    level: str = "info",
    format: str = "auto",  # noqa: A002 - the setting's name
    stream: TextIO | None = None,
    *,
    modules: Mapping[str, str] = MappingProxyType({}),
    process: int | None = None,
) -> None:
    """Send everything that is logged to `stream` (standard error by default).

    `level` is the least to be written; `format` is json, console, or auto: console when the stream is a terminal.
    `modules` are those with a level of their own. `process` is the number of this process among several, for each line.
    May be called again; the last call holds.
    """
    shared = [*_shared(), *([] if process is None else [_numbered(process)])]
    target = sys.stderr if stream is None else stream
    pretty = format == "console" or (format == "auto" and target.isatty())
    handler = logging.StreamHandler(target)
    handler.setFormatter(_formatter(shared, pretty=pretty, colors=pretty and target.isatty()))
    handler.addFilter(Noise())
    root = logging.getLogger()
    for old in [
        handler for handler in root.handlers if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter)
    ]:
        root.removeHandler(old)
    root.addHandler(handler)
    set_levels(level, modules)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            name_old_event,
            lead_to_runbook,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # loggers are module globals: caching would keep the first configuration
    )


def quieted(level: int = logging.WARNING) -> None:
    """Log warnings to standard error, unless logging is configured: for use in other programs.

    `level`: the lowest level instead of warnings.
    """
    if not structlog.is_configured():
        structlog.configure(
            processors=[name_old_event, *structlog.get_config()["processors"]],
            wrapper_class=structlog.make_filtering_bound_logger(level),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )


def set_levels(level: str, modules: Mapping[str, str]) -> None:
    """Set the lowest level, and other levels for modules and all below them; the last call counts.

    Libraries are shown from WARNING on unless a level is debug, or they are named. The audit log is always written.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(number)
    for name in _own:
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name in LIBRARIES:
        least = logging.WARNING if number > logging.DEBUG else logging.INFO if name in SIGNERS else logging.DEBUG
        logging.getLogger(name).setLevel(max(number, least))
        logging.getLogger(name).propagate = True  # google-auth ends it at its first request before there is a level
    for name, one in modules.items():
        logging.getLogger(name).setLevel(one.upper())
    _own.clear()
    _own.update(modules)
    logging.getLogger(audit.LOGGER).setLevel(logging.INFO)


def name_old_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the old name of an event that was renamed, as `event_was`."""
    if (old := OLD_EVENTS.get(event["event"])) is not None:
        event["event_was"] = old
    return event


def lead_to_runbook(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add to a warning or an error where its cause and remedy are described, as `runbook_url` does for alerts.

    Only for events: a library, and our client within another program, logs sentences, which no page lists.
    """
    if event["level"] in {"warning", "error", "critical"}:
        event["runbook"] = f"{RUNBOOK}#{event['event']}"
    return event


def mask_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace the values of secret keys, at any depth down to DEPTH_MAX."""
    return {key: _masked(key, value, DEPTH_MAX) for key, value in event.items()}


def _masked(key: object, value: object, depth: int) -> object:
    if isinstance(key, str) and key.lower().replace("_", "").replace("-", "") in SECRET_KEYS:
        return MASK
    if isinstance(value, Mapping) and depth:
        return {inner: _masked(inner, item, depth - 1) for inner, item in value.items()}
    if isinstance(value, list | tuple) and depth:
        return [_masked("", item, depth - 1) for item in value]
    return value


def _shared() -> list[Processor]:
    """Return the processors of our events and of the records of libraries."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.stdlib.ExtraAdder(),
        mask_secrets,
    ]


def _numbered(process: int) -> Processor:
    def add(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.setdefault("process", process)
        return event

    return add


def _formatter(shared: Sequence[Processor], *, pretty: bool, colors: bool) -> structlog.stdlib.ProcessorFormatter:
    end: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if pretty:
        end.append(structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback))
    else:
        end += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.PositionalArgumentsFormatter(), *shared], processors=end
    )


PACKAGE = Path(__file__).parents[1]
RUNBOOK = "docs/failures.md"
"""The page whose index has each event that is a warning or an error."""
LIBRARIES = ("aiobotocore", "aiohttp", "asyncio", "azure", "botocore", "google", "grpc", "kazoo", "msal", "urllib3")
SIGNERS = ("aiobotocore", "botocore")


def parsed_levels(lines: Iterable[str]) -> dict[str, str]:
    """Parse lines of `MODULE LEVEL`, and skip those of `unknown_modules`. Raises InvalidInput for a wrong level."""
    found = {}
    for line in lines:
        module, _, level = line.partition(" ")
        name, exists = _resolved(module)
        checked_level(name, level.strip())
        if exists:
            found[name] = level.strip()
    return found


def unknown_modules(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield a message and a hint for each line whose module does not exist.

    Modules are moved and merged from release to release: a daemon starts whatever levels its settings have.
    """
    for line in lines:
        try:
            known_module(line.partition(" ")[0])
        except InvalidInput as error:
            yield f"log.levels: {error.message}, so this level changes nothing", error.hint


def known_module(name: str) -> str:
    """Return a module's full name, `topic.tailer` being short for `offloaderd.topic.tailer`. Raises InvalidInput."""
    full, exists = _resolved(name)
    if exists:
        return full
    modules = sorted(_modules())
    same_word = [one for one in modules if one.rpartition(".")[2] == name.rpartition(".")[2]]
    near = same_word or get_close_matches(name.removeprefix(f"{PACKAGE.name}."), [*modules, *LIBRARIES], 1)
    raise InvalidInput(
        f"there is no module {name!r} that logs",
        hint=f"did you mean {' or '.join(near)}?"
        if near
        else f"{PACKAGE.name}.PACKAGE.MODULE, or one of {', '.join(LIBRARIES)}",
    )


def _resolved(name: str) -> tuple[str, bool]:
    """Return the full name, by the present name of its package, and whether that module exists."""
    parts = name.split(".")
    words_only = all(part.isidentifier() for part in parts)
    if parts[0] in LIBRARIES:
        return name, words_only
    parts = parts if parts[0] == PACKAGE.name else [PACKAGE.name, *parts]
    for count in (3, 2):
        if (moved := LOG_MODULES.get(".".join(parts[1:count]))) is not None:
            parts = [PACKAGE.name, *moved.split("."), *parts[count:]]
            break
    path = PACKAGE.parent.joinpath(*parts)
    return ".".join(parts), words_only and (path.is_dir() or path.with_suffix(".py").is_file())


def _modules() -> Iterator[str]:
    """Yield the short names of all packages and modules."""
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def checked_level(module: str, level: str) -> None:
    """Raise InvalidInput for an unknown level, or one at which a library would log secrets."""
    if level not in LOG_LEVELS:
        raise InvalidInput(f"{level!r} is no level", hint="one of " + ", ".join(LOG_LEVELS))
    if level == "debug" and module.split(".", maxsplit=1)[0] in SIGNERS:
        raise InvalidInput(f"{module} writes signed headers at debug", hint="info is the lowest for it")
    if module == audit.LOGGER:
        raise InvalidInput("the audit log is written whatever the level", hint="name another module")
