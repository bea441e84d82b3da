"""Options of every offloadctl command: the daemon, how long to wait, JSON; and types of arguments.

The options may stand before or after the subcommand; the later one wins.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from offloaderd.cli import show
from offloaderd.client import DaemonClient, Trust, Unreachable
from offloaderd.core import units as words
from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidInput, OffloaderError
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.core.read_options import ReadPriority
from offloaderd.core.units import format_bytes, parse_bytes, parse_seconds
from offloaderd.standalone import state

T = TypeVar("T")
_MILLISECOND = timedelta(milliseconds=1)
SEGMENT_BYTES_SMALL = 2**20
"""Below it a policy is taken with a warning: tests and trials need such segments, production does not."""


def with_hint(_: str, error: Exception) -> str:
    """Return the message for a text that cannot be parsed: the error, and its hint in a line of its own."""
    if not isinstance(error, InvalidInput):
        return str(error)
    return f"{error.message}\nhint: {error.hint}" if error.hint else error.message


class Parsed(click.ParamType[T]):
    """The value that `parse` makes of a text; `message` describes a text that it refuses."""

    def __init__(
        self, name: str, parse: Callable[[str], T], message: Callable[[str, Exception], str] = with_hint
    ) -> None:
        self.name = name
        self._parse = parse
        self._message = message

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:  # noqa: ANN401
        """Parse a text, or fail; a default is taken unchanged."""
        if not isinstance(value, str):
            parsed: T = value
            return parsed
        try:
            return self._parse(value)
        except (InvalidInput, ValueError) as error:
            self.fail(self._message(value, error), param, ctx)


def size_param(bare: int = 1) -> Parsed[int]:
    """Return a number of bytes: 1048576, 64MiB, 64M, 256MB. One without a unit counts `bare` bytes."""

    def parse(text: str) -> int:
        size = parse_bytes(text, bare=Fraction(bare))
        if size <= 0:
            raise ValueError("not a size: at least 1 byte")
        return size

    return Parsed("size", parse, lambda text, error: f"{text!r} is {error}")


def duration_param(least: float | None = None) -> Parsed[float]:
    """Return a duration: 90s, 15min, 2h, 1.5d, or seconds. Gives seconds, `least` or more; more than 0 without one."""

    def parse(text: str) -> float:
        seconds = parse_seconds(text)
        if least is None and seconds <= 0:
            raise ValueError("not more than 0")
        if least is not None and seconds < least:
            raise ValueError(f"less than {least:g} s")
        return seconds

    return Parsed("duration", parse, lambda text, error: f"{text!r} is {error}")


def moment_ms(value: str) -> int:
    """Parse a time: ISO 8601, UTC unless it names a zone, or milliseconds since 1970. Returns milliseconds.

    Raises ValueError whose text shows an example.
    """
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"not a time: {value!r}; write 2026-11-21T10:00:00Z or milliseconds since 1970") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    wall_ms = (moment - datetime.fromtimestamp(0, UTC)) // _MILLISECOND
    if wall_ms < 0:
        raise ValueError(f"{value!r} is before 1970")
    return wall_ms


def ago_ms(clock: Clock, seconds: float) -> int:
    """Return the time that lies so many seconds back, 1970 at the earliest."""
    return max(0, clock.wall_ms() - round(seconds * 1000))


def warn_of_small_segments(size_bytes: int) -> None:
    """Warn on stderr of a segment size that is probably a forgotten unit or meant for blocks."""
    if 0 < size_bytes < SEGMENT_BYTES_SMALL:
        click.echo(
            f"warning: segments of {words.size(size_bytes)}: each is three objects and a transaction in ZooKeeper, "
            f"however little it holds\nhint: `offloadctl plan-cost` compares sizes; say {format_bytes(2**24)} or more",
            err=True,
        )


SIZE = size_param()
DURATION = duration_param()
MOMENT = Parsed("time", moment_ms)

DEFAULT_ADDRESS = "127.0.0.1:7650"
"""Address of a daemon with default settings; repeated here, since loading the settings takes longer than a call."""
CALL_TIMEOUT_S = 30.0
TRUST_FILES = {
    "tls_ca": ("ca_file", "Authorities that sign the daemon's certificate (PEM). Not given: those of the system."),
    "tls_cert": ("cert_file", "Our certificate (PEM), for a daemon that asks for one."),
    "tls_key": ("key_file", "Its key (PEM, without a passphrase)."),
    "token_file": (
        "token_file",
        "File with a token as Pulsar's brokers take it; the token itself may be in OFFLOADCTL_TOKEN.",
    ),
}
"""The field of Trust, and the help, by option."""
PATTERN_TIMEOUT_S = 300.0
"""For calls that change the policies of many topics: ten thousand take about ten seconds."""


@dataclass(frozen=True, slots=True)
class Session:
    """How a command connects to the daemon and writes its answer. `timeout_s` None: the default of the command."""

    address: str | None = None
    standalone: Path | None = None
    timeout_s: float | None = None
    json: bool = False
    trust: Trust = field(default_factory=Trust)

    def target(self) -> str:
        """Return the daemon's address: given, a standalone's, or the default. Raises NotFound, InvalidConfig."""
        if self.address is not None:
            return self.address
        if self.standalone is not None:
            return state.load(self.standalone).address
        usual = Path(state.DEFAULT_DIRECTORY)
        if state.running(usual):
            return state.load(usual).address
        return DEFAULT_ADDRESS

    def client(self, *, timeout_s: float = CALL_TIMEOUT_S) -> DaemonClient:
        """Return a client that is not connected yet; `timeout_s` is the default of the command."""
        self.trust.check()
        return DaemonClient(self.target(), timeout_s=self.timeout_s or timeout_s, trust=self.trust)

    def ask(self, call: Callable[[DaemonClient], Awaitable[T]], *, timeout_s: float = CALL_TIMEOUT_S) -> T:
        """Make a call to the daemon and return its answer; `timeout_s` as in `client`."""

        async def connected() -> T:
            async with self.client(timeout_s=timeout_s) as client:
                return await call(client)

        return self.run(connected())

    def tell(self, document: Mapping[str, object], text: str | Callable[[], object]) -> None:
        """Write an answer: the document with --json; else the text, if it is not empty, or call what writes it."""
        if self.json:
            show.document(document)
        elif callable(text):
            text()
        elif text:
            click.echo(text)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a command to its end. If the standalone that it needs is stopped, the error names it."""
        try:
            return asyncio.run(work)
        except Unreachable as error:
            directory = self.standalone or Path(state.DEFAULT_DIRECTORY)
            named = self.address is not None or not (directory / state.FILE_NAME).exists()
            if named or state.running(directory):
                raise
            start = f"offloaderd standalone --data {directory}"
            raise Unreachable(
                f"{error.message}; the standalone in {directory} is stopped", hint=f"start it: {start}"
            ) from error


class ConnectionOption(click.Option):
    """An option of the connection: described in the help of the program; the help of commands names it in one line."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the line of --help, None for no line."""
        if ctx.parent is None:
            return super().get_help_record(ctx)
        if self.name != "address":
            return None
        flags = "--address, --standalone, --timeout, --tls..., --token-file"
        return flags, f"Which daemon, how, and for how long: {ctx.find_root().info_name} --help"


def common(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options to a command or group; the function gets a `session` first."""

    @click.option(
        "--address",
        cls=ConnectionOption,
        metavar="HOST:PORT",
        envvar="OFFLOADCTL_ADDRESS",
        help=f"The daemon's gRPC address. [env: OFFLOADCTL_ADDRESS; default: that of a standalone running in "
        f"{state.DEFAULT_DIRECTORY}, else {DEFAULT_ADDRESS}]",
    )
    @click.option(
        "--standalone",
        cls=ConnectionOption,
        metavar="DIR",
        envvar="OFFLOADCTL_STANDALONE",
        type=click.Path(path_type=Path),
        help="Use the daemon of the standalone with this data directory. [env: OFFLOADCTL_STANDALONE]",
    )
    @click.option(
        "--timeout",
        "timeout_s",
        cls=ConnectionOption,
        metavar="TIME",
        type=DURATION,
        help=f"Give up after this long. [default: {CALL_TIMEOUT_S:g}; {PATTERN_TIMEOUT_S:g} for patterns; none for "
        "what streams or waits]",
    )
    @trusting
    @click.option("--json", "as_json", is_flag=True, help="Answer in JSON: one document, or one line an item.")
    def command(
        address: str | None,
        standalone: Path | None,
        timeout_s: float | None,
        as_json: bool,
        **arguments: Any,  # noqa: ANN401 - a command's own arguments
    ) -> Any:  # noqa: ANN401
        context = click.get_current_context()
        session = merged(context, address, standalone, timeout_s, as_json=as_json)
        session = replace(session, trust=taken_trust(context, arguments, session.trust))
        context.obj = session
        return function(session, **arguments)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


def trusting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of TLS and tokens."""
    file = click.Path(path_type=Path, dir_okay=False)
    for name, (_, text) in reversed(TRUST_FILES.items()):
        flag, variable = f"--{name.replace('_', '-')}", f"OFFLOADCTL_{name.upper()}"
        described = {"metavar": "FILE", "help": f"{text} [env: {variable}]"}
        function = click.option(flag, name, cls=ConnectionOption, envvar=variable, type=file, **described)(function)
    return click.option(
        "--tls",
        cls=ConnectionOption,
        is_flag=True,
        envvar="OFFLOADCTL_TLS",
        help="Speak TLS; implied by --tls-ca and --tls-cert.",
    )(function)


def taken_trust(context: click.Context, arguments: dict[str, Any], outer: Trust) -> Trust:
    """Take the options of TLS and tokens out of the arguments; a flag overrides the environment and outer flags.

    The token itself is taken from the environment only: everybody who lists processes can see options.
    """
    given: dict[str, Any] = {}
    for name, (attribute, _) in {"tls": ("tls", ""), **TRUST_FILES}.items():
        value = arguments.pop(name)
        if value and (from_command_line(context, name) or not getattr(outer, attribute)):
            given[attribute] = value
    return replace(outer, token=os.environ.get("OFFLOADCTL_TOKEN") or None, **given)


def from_command_line(context: click.Context, name: str) -> bool:
    """Whether an option was given on the command line, and not by the environment."""
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def merged(
    context: click.Context, address: str | None, standalone: Path | None, timeout_s: float | None, *, as_json: bool
) -> Session:
    """Return the session of the outer command with the options of this one; a flag overrides the environment.

    Raises UsageError for two flags that contradict each other.
    """

    given = partial(from_command_line, context)
    if given("address") and given("standalone"):
        raise click.UsageError("--address and --standalone exclude each other")
    session: Session = context.obj if isinstance(context.obj, Session) else Session()
    if given("address") or (address is not None and session.address is None and session.standalone is None):
        session = replace(session, address=address, standalone=None)
    if given("standalone") or (standalone is not None and session.address is None and session.standalone is None):
        session = replace(session, address=None, standalone=standalone)
    return replace(session, timeout_s=timeout_s or session.timeout_s, json=as_json or session.json)


async def last_of(answers: AsyncGenerator[T, None], take: Callable[[T], object]) -> T:
    """Hand each answer of a call to `take` and return the last one. Raises OffloaderError if there is none."""
    last: T | None = None
    async with aclosing(answers):
        async for last in answers:
            take(last)
    if last is None:
        raise OffloaderError("the daemon ended the call without an answer")
    return last


def confirm(question: str) -> None:
    """Ask for a confirmation. Raises UsageError without a terminal, Abort for a no."""
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask at\nhint: add --yes")
    click.confirm(question, abort=True, err=True)


def one_pattern(context: click.Context, param: click.Parameter, words: tuple[str, ...]) -> TopicPattern:
    """Parse the one topic or pattern of a command; several words mean that the shell expanded a pattern."""
    if len(words) > 1:
        hint = "quote a pattern, or the shell puts names of files in its place: 'public/default/*'"
        raise click.UsageError(f"one topic or pattern, not {len(words)}\nhint: {hint}", context)
    return Parsed("pattern", TopicPattern.named).convert(words[0], param, context)


TOPIC = Parsed("topic", TopicName.parse)
POSITION = Parsed("position", Position.parse)
PRIORITY = Parsed("priority", ReadPriority.parse)
PLAN_ONLY = click.option("--dry-run", is_flag=True, help="Change nothing; show the plan.")
YES = click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
