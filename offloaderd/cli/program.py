"""The frame of both commands: every failure ends as one line, a hint and an exit code; never as a traceback."""

import asyncio
import json
import os
import re
import sys
from collections import UserDict, defaultdict
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from importlib import import_module, metadata
from itertools import pairwise
from typing import Any

import click
from click.shell_completion import CompletionItem

from offloaderd.core.errors import CorruptData, Denied, InvalidConfig, InvalidInput, NotFound, OffloaderError, first_of

OK, FAILED, USAGE, UNREACHABLE, NOT_FOUND, CORRUPT, TIMED_OUT, DENIED = range(8)
INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_CODES = """\b
Exit codes:
  0    done
  1    failed
  2    wrong usage, argument or configuration
  3    the daemon cannot be reached
  4    the topic, or the requested entry or object, does not exist
  5    stored data is corrupt
  6    no result before --timeout
  7    not allowed: certificate, token or role is missing or not accepted
  130  interrupted (Ctrl-C)
  141  the reader of the output ended"""

DEBUG = "OFFLOADERD_DEBUG"
"""Environment variable that shows unexpected errors with their traceback."""

_AS_JSON: ContextVar[bool] = ContextVar("as_json", default=False)
"""Whether errors are JSON, those of usage included."""


def errors_as_json(args: Sequence[str]) -> bool:
    """Whether a command line asks for JSON or YAML; a line of JSON is YAML as well."""
    forms = {"json", "yaml"}
    return any(
        one == "--json" or (before == "-o" and one in forms) or (one[:2] == "-o" and one[2:].lstrip("=") in forms)
        for before, one in pairwise(["", *args])
    )


def exit_code(error: OffloaderError) -> int:
    """Return the exit code for an error."""
    from offloaderd.client import TimedOut, Unreachable  # noqa: PLC0415 - successful commands need not load gRPC

    kinds = (
        (Unreachable, UNREACHABLE),
        (TimedOut, TIMED_OUT),
        (InvalidInput, USAGE),
        (InvalidConfig, USAGE),
        (NotFound, NOT_FOUND),
        (CorruptData, CORRUPT),
        (Denied, DENIED),
    )
    return next((code for kind, code in kinds if isinstance(error, kind)), FAILED)


class LazyCommands(UserDict[str, Any]):
    """Commands by name, imported when they are called.

    `commands` maps `module:attribute` in the package to a line of help; the attribute is the name of the command.
    """

    def __init__(self, package: str, commands: Mapping[str, str]) -> None:
        super().__init__({one.partition(":")[2].replace("_", "-"): one for one in commands})
        self._package = package
        self.helps = sorted(zip(self.data, commands.values(), strict=True))

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - a click.Command
        """Return a command. Raises KeyError."""
        module, _, attribute = self.data[name].partition(":")
        return getattr(import_module(f"{self._package}.{module}"), attribute)


class Program(click.Group):
    """A click group that ends the process with the documented exit codes."""

    commands: LazyCommands

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, none of which need be imported for that."""
        with formatter.section("Commands"):
            formatter.write_dl(self.commands.helps)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command without importing any, or an option."""
        found = [CompletionItem(name, help=text) for name, text in self.commands.helps if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,  # noqa: ANN401 - click's signature
    ) -> Any:  # noqa: ANN401 - click's signature
        """Run; in standalone mode every outcome becomes an exit code."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        before = _AS_JSON.set(errors_as_json(sys.argv[1:] if args is None else args))
        try:
            result = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
            code = result if isinstance(result, int) else OK
        except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:  # noqa: BLE001 - the outermost frame
            code = outcome_of(error)
        finally:
            _AS_JSON.reset(before)
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        """Run the command; note a broken pipe before click turns it into a failure."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error


class ReaderGone(Exception):
    """The reader of our output closed the pipe."""


def outcome_of(error: BaseException) -> int:
    """Report an error to the user and return the exit code; of a group of errors the most urgent one."""
    if isinstance(error, BaseExceptionGroup):
        error = first_of(error)
    if isinstance(error, click.ClickException):
        code = USAGE if isinstance(error, click.UsageError) else FAILED
        if _AS_JSON.get():
            message, _, hint = error.format_message().partition("\nhint: ")
            _tell_json(message, hint, code)
        else:
            error.show()
        return code
    if isinstance(error, click.Abort | KeyboardInterrupt | asyncio.CancelledError):
        return INTERRUPTED
    if isinstance(error, ReaderGone | BrokenPipeError):
        return _broken_pipe()
    if isinstance(error, OffloaderError):
        return report(error)
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return report(OffloaderError(f"{error.filename}: {reason}" if error.filename else reason))
    if isinstance(error, ModuleNotFoundError) and (extra := extra_of(error.name or "")) is not None:
        missing = f"{error.name} is not installed: pip install 'offloaderd[{extra}]' in the Python that runs this"
        return report(InvalidConfig(f"this command needs the extra {extra!r}; {missing}"))
    if os.environ.get(DEBUG):
        raise error
    text = f"internal error: {type(error).__name__}: {error}"
    return report(OffloaderError(text, hint=f"{DEBUG}=1 shows where; please report it"))


DISTRIBUTIONS = {
    "botocore": "aiobotocore",
    "grpc_health": "grpcio_health_checking",
    "grpc_reflection": "grpcio_reflection",
    "jwt": "pyjwt",
    "py4j": "pyspark",
    "re2": "google_re2",
}
"""The distribution that brings a module, where their names differ."""


def extra_of(module: str) -> str | None:
    """Return the smallest extra of this distribution that installs a module, None for none."""
    module = module.partition(".")[0]
    wanted = DISTRIBUTIONS.get(module, module)
    modules_of = defaultdict[str, set[str]](set)
    for line in metadata.requires("offloaderd") or []:
        if (found := re.match(r"""([\w-]+).*extra == ['"](\w+)['"]""", line)) is not None:
            modules_of[found[2]].add(found[1].replace("-", "_"))
    extras = [extra for extra, modules in modules_of.items() if wanted in modules]
    return min(extras, key=lambda extra: len(modules_of[extra]), default=None)


def report(error: OffloaderError) -> int:
    """Write an error to stderr, as a line of JSON if --json was given; returns its exit code."""
    if _AS_JSON.get():
        return _tell_json(error.message, error.hint, exit_code(error))
    lines = [line.rstrip() for line in error.message.splitlines() if line.strip()] or [type(error).__name__]
    click.echo(f"error: {lines[0]}", err=True)
    for line in lines[1:]:
        click.echo(f"  {line.strip()}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)
    return exit_code(error)


def _tell_json(message: str, hint: str | None, code: int) -> int:
    document = {"error": message, "hint": hint or None, "exit_code": code}
    click.echo(json.dumps(document, ensure_ascii=False), err=True)
    return code


def _broken_pipe() -> int:
    """Discard the buffered output, so that its flush at exit does not fail; returns the exit code."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, sys.stdout.fileno())
    except (OSError, ValueError):
        pass  # stdout is no real file (a test, an embedding): nothing is left to flush into the pipe
    finally:
        os.close(devnull)
    return BROKEN_PIPE
