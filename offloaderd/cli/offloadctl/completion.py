"""`offloadctl completion` and `options`: the script for the shell, and the options of every command on one page."""

import click
from click.shell_completion import get_completion_class

from offloaderd.cli.options import SharedOption

PROGRAMS = ("offloadctl", "offloaderd")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script by which a shell completes commands, options, topics and contexts of both programs.

    Topics are those of the daemon that the command line, the environment or the context in use names. bash: 4.4 or
    newer.

    \b
    Examples:
      eval "$(offloadctl completion bash)"
      offloadctl completion fish > ~/.config/fish/completions/offloadctl.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    program = context.find_root().command
    for name in PROGRAMS:
        click.echo(kind(program, {}, name, f"_{name.upper()}_COMPLETE").source())


@click.command()
@click.pass_context
def options(context: click.Context) -> None:
    """Show the options that every command of offloadctl takes, before or after its name; the later one wins.

    \b
    Examples:
      offloadctl options
    """
    formatter = context.make_formatter()
    with formatter.section("Options of every command"):
        shared = [one for one in context.find_root().command.params if isinstance(one, SharedOption)]
        formatter.write_dl([one.described(context) for one in shared])
    click.echo(formatter.getvalue(), nl=False)
