"""Options of every offloadctl command: the daemon, how long to wait, the form; and types of arguments.

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
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from offloaderd.cli import contexts, forms
from offloaderd.cli.contexts import Context
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
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
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
        self,
        name: str,
        parse: Callable[[str], T],
        message: Callable[[str, Exception], str] = with_hint,
        complete: Complete | None = None,
    ) -> None:
        self.name = name
        self._parse = parse
        self._message = message
        self._complete = complete

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete a value in the shell."""
        return self._complete(ctx, param, incomplete) if self._complete is not None else []

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
COMPLETION_S = 2.0
"""How long a daemon may take to complete a word in the shell."""
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


WHICH = ("address", "standalone", "context")
"""The options that name a daemon; each excludes the others."""


@dataclass(frozen=True, slots=True)
class Session:
    """How a command connects to the daemon and writes its answer. `timeout_s` None: the default of the command."""

    address: str | None = None
    standalone: Path | None = None
    context: str | None = None
    timeout_s: float | None = None
    form: str = forms.TABLE
    trust: Trust = field(default_factory=Trust)

    @property
    def structured(self) -> bool:
        """Whether the answer is for programs, and nothing but its document is written."""
        return self.form in forms.STRUCTURED

    def chosen(self) -> Context | None:
        """Return the context: that of --context, or the one in use where no daemon is named.

        Raises NotFound, InvalidConfig.
        """
        if self.address is not None or self.standalone is not None:
            return None
        return contexts.load().chosen(self.context)

    def target(self) -> str:
        """Return the daemon's address: given, a standalone's, a context's, that of a standalone that runs, the default.

        Raises NotFound, InvalidConfig.
        """
        if self.address is not None:
            return self.address
        if self.standalone is not None:
            return state.load(self.standalone).address
        if (chosen := self.chosen()) is not None:
            return chosen.address
        if (found := state.found()) is not None:
            return state.load(found).address
        return DEFAULT_ADDRESS

    def client(self, *, timeout_s: float = CALL_TIMEOUT_S) -> DaemonClient:
        """Return a client that is not connected yet; `timeout_s` is the default of the command."""
        chosen = self.chosen()
        trust = chosen.trusted(self.trust) if chosen is not None else self.trust
        trust.check()
        return DaemonClient(self.target(), timeout_s=self.timeout_s or timeout_s, trust=trust)

    def ask(self, call: Callable[[DaemonClient], Awaitable[T]], *, timeout_s: float = CALL_TIMEOUT_S) -> T:
        """Make a call to the daemon and return its answer; `timeout_s` as in `client`."""

        async def connected() -> T:
            async with self.client(timeout_s=timeout_s) as client:
                return await call(client)

        return self.run(connected())

    def tell(self, document: Mapping[str, object], text: str | Callable[[], object]) -> None:
        """Write an answer: the document in the form of -o; for a table the text, or call what writes it."""
        if self.form != forms.TABLE:
            click.echo(forms.written(document, self.form), nl=False)
        elif callable(text):
            text()
        elif text:
            click.echo(text)

    def item(self, document: Mapping[str, object]) -> None:
        """Write one of several documents, in a form for programs."""
        click.echo(forms.item(document, self.form), nl=False)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a command to its end. If the standalone that it needs is stopped, the error names it."""
        try:
            return asyncio.run(work)
        except Unreachable as error:
            directory = self.standalone or Path(state.DEFAULT_DIRECTORY)
            named = self.address is not None or self.chosen() is not None
            if named or state.running(directory) or not (directory / state.FILE_NAME).exists():
                raise
            start = f"offloaderd standalone --data {directory}"
            raise Unreachable(
                f"{error.message}; the standalone in {directory} is stopped", hint=f"start it: {start}"
            ) from error


class SharedOption(click.Option):
    """An option of every command: described by `offloadctl options`; all other help names them in one line."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the line of --help, None for no line."""
        if self.name != "address":
            return None
        return "--address, ...", f"Which daemon, how, and in which form: {ctx.find_root().info_name} options"

    def described(self, ctx: click.Context) -> tuple[str, str]:
        """Return the flags and the help."""
        return super().get_help_record(ctx) or ("", "")


def common(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options to a command or group; the function gets a `session` first."""

    @click.option(
        "--address",
        cls=SharedOption,
        metavar="HOST:PORT",
        envvar="OFFLOADCTL_ADDRESS",
        help=f"The daemon's gRPC address. [env: OFFLOADCTL_ADDRESS; default: that of the context in use, else that of "
        f"a standalone that runs, else {DEFAULT_ADDRESS}]",
    )
    @click.option(
        "--standalone",
        cls=SharedOption,
        metavar="DIR",
        envvar="OFFLOADCTL_STANDALONE",
        type=click.Path(path_type=Path),
        help="Use the daemon of the standalone with this data directory. [env: OFFLOADCTL_STANDALONE]",
    )
    @click.option(
        "--context",
        cls=SharedOption,
        metavar="NAME",
        envvar="OFFLOADCTL_CONTEXT",
        shell_complete=contexts.complete,
        help="Use the address, TLS files and token file of this context. [env: OFFLOADCTL_CONTEXT; default: the one "
        "chosen by `offloadctl context use`]",
    )
    @click.option(
        "--timeout",
        "timeout_s",
        cls=SharedOption,
        metavar="TIME",
        type=DURATION,
        help=f"Give up after this long. [default: {CALL_TIMEOUT_S:g}; {PATTERN_TIMEOUT_S:g} for patterns; none for "
        "what streams or waits]",
    )
    @trusting
    @click.option(
        "-o",
        "form",
        cls=SharedOption,
        type=click.Choice(forms.FORMS),
        help="The form of the answer. table: for people. wide: all fields, as a table. json and yaml: a document, or "
        "one for each item. name: the names alone, one a line. [default: table]",
    )
    @click.option(
        "--json", "as_json", cls=SharedOption, is_flag=True, help="The short form of -o json, for one release."
    )
    def command(**arguments: Any) -> Any:  # noqa: ANN401 - the shared options, and a command's own arguments
        context = click.get_current_context()
        outer = context.obj if isinstance(context.obj, Session) else Session()
        context.obj = taken(context, outer, arguments)
        return function(context.obj, **arguments)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


def trusting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of TLS and tokens."""
    file = click.Path(path_type=Path, dir_okay=False)
    for name, (_, text) in reversed(TRUST_FILES.items()):
        flag, variable = f"--{name.replace('_', '-')}", f"OFFLOADCTL_{name.upper()}"
        described = {"metavar": "FILE", "help": f"{text} [env: {variable}]"}
        function = click.option(flag, name, cls=SharedOption, envvar=variable, type=file, **described)(function)
    return click.option(
        "--tls",
        cls=SharedOption,
        is_flag=True,
        envvar="OFFLOADCTL_TLS",
        help="Speak TLS; implied by --tls-ca and --tls-cert.",
    )(function)


def taken(context: click.Context, outer: Session, arguments: dict[str, Any]) -> Session:
    """Take the shared options out of the arguments, and return the session of the outer command with them.

    A flag overrides the environment. Raises UsageError for flags that contradict each other.
    """
    values = {name: arguments.pop(name) for name in (*WHICH, "timeout_s", "form", "as_json")}
    given = [name for name in WHICH if from_command_line(context, name)]
    if len(given) > 1:
        raise click.UsageError(f"--{given[0]} and --{given[1]} exclude each other")
    session = outer
    if not given and all(getattr(outer, name) is None for name in WHICH):
        given = [name for name in WHICH if values[name] is not None][:1]
    if given:
        session = replace(session, **{**dict.fromkeys(WHICH), given[0]: values[given[0]]})
    if values["as_json"] and values["form"] not in {None, forms.JSON}:
        raise click.UsageError("--json and -o exclude each other")
    return replace(
        session,
        timeout_s=values["timeout_s"] or session.timeout_s,
        form=forms.JSON if values["as_json"] else values["form"] or session.form,
        trust=taken_trust(context, arguments, session.trust),
    )


def session_of(context: click.Context) -> Session:
    """Return the session that a command line describes which is not run: for completion."""
    outer = session_of(context.parent) if context.parent is not None else Session()
    return taken(context, outer, dict(context.params)) if "address" in context.params else outer


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


async def last_of(answers: AsyncGenerator[T, None], take: Callable[[T], object]) -> T:
    """Hand each answer of a call to `take` and return the last one. Raises OffloaderError if there is none."""
    last: T | None = None
    async with aclosing(answers):
        async for last in answers:
            take(last)
    if last is None:
        raise OffloaderError("the daemon ended the call without an answer")
    return last


def is_terminal() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty()


def confirm(question: str) -> None:
    """Ask for a confirmation. Raises UsageError without a terminal, Abort for a no."""
    if not is_terminal():
        raise click.UsageError("there is no terminal to ask at\nhint: add --yes")
    click.confirm(question, abort=True, err=True)


async def _names(client: DaemonClient, prefix: str) -> list[str]:
    return [one.topic for one in await client.topics(prefix)]


def complete_topics(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the topics that begin so, by the daemon that the command line names; none where it does not answer."""
    domain = "persistent://"
    path = incomplete.removeprefix(domain)
    prefix = path.rpartition("/")[0] if not path.startswith("re:") else ""
    try:
        session = replace(session_of(context), timeout_s=COMPLETION_S)
        names = session.ask(lambda client: _names(client, prefix))
    except (OffloaderError, click.ClickException):
        return []
    if not incomplete.startswith(domain):
        names = [name.removeprefix(domain).removeprefix("public/default/") for name in names]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def one_pattern(context: click.Context, param: click.Parameter, words: tuple[str, ...]) -> TopicPattern:
    """Parse the one topic or pattern of a command; several words mean that the shell expanded a pattern."""
    if len(words) > 1:
        hint = "quote a pattern, or the shell puts names of files in its place: 'public/default/*'"
        raise click.UsageError(f"one topic or pattern, not {len(words)}\nhint: {hint}", context)
    return Parsed("pattern", TopicPattern.named).convert(words[0], param, context)


TOPIC = Parsed("topic", TopicName.parse, complete=complete_topics)
POSITION = Parsed("position", Position.parse)
PRIORITY = Parsed("priority", ReadPriority.parse)
PLAN_ONLY = click.option("--dry-run", is_flag=True, help="Change nothing; show the plan.")
YES = click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
