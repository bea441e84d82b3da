"""`offloadctl context`: daemons by name, and which of them is used. It asks no daemon."""

from dataclasses import replace
from pathlib import Path

import click

from offloaderd.cli import contexts, options, show
from offloaderd.cli.contexts import Context, Contexts
from offloaderd.cli.options import Session
from offloaderd.client import checked_address

NAME = click.argument("name", metavar="NAME", shell_complete=contexts.complete)


@click.group()
@options.common
def context(session: Session) -> None:
    """Name daemons, each with its address, TLS files and token file, and choose one.

    Contexts are in contexts.toml below ~/.config/offloaderd ($XDG_CONFIG_HOME/offloaderd). A token is never in it.
    """


@context.command("list", short_help="List contexts.")
@options.common
def list_contexts(session: Session) -> None:
    """List the contexts; that in use has a star.

    \b
    Examples:
      offloadctl context list
      offloadctl context list -o name
    """
    found = contexts.load()
    rows = [_document(found, name) for name in found.named]
    session.tell({"contexts": rows}, lambda: TABLE.show(rows) if rows else show.note("no contexts"))


@context.command(short_help="Choose a context.")
@click.argument("name", metavar="NAME", required=False, shell_complete=contexts.complete)
@click.option("--none", is_flag=True, help="Use none.")
@options.common
def use(session: Session, name: str | None, *, none: bool) -> None:
    """Use a context wherever no daemon is named by an option or the environment.

    \b
    Examples:
      offloadctl context use prod
      offloadctl context use --none
    """
    if (name is None) is not none:
        raise click.UsageError("name a context, or give --none")
    found = contexts.load()
    address = found[name].address if name is not None else None
    contexts.save(replace(found, current=name))
    said = f"{name} is used now: {address}" if name is not None else "no context is used now"
    session.tell({"name": name, "address": address}, said)


@context.command("set", short_help="Make or replace a context.")
@NAME
@options.common
def set_context(session: Session, name: str) -> None:
    """Make a context of --address and the options for TLS and tokens, or replace it by them.

    Names of files are kept as absolute paths. A token in OFFLOADCTL_TOKEN is not kept.

    \b
    Examples:
      offloadctl context set prod --address offload.prod.example:7650 --tls-ca ca.crt --token-file token
      offloadctl context set here --address 127.0.0.1:7650
    """
    if session.address is None:
        raise click.UsageError("a context has an address\nhint: add --address HOST:PORT")
    trust = replace(session.trust, token=None)
    trust.check()
    files = {"tls_ca": trust.ca_file, "tls_cert": trust.cert_file, "tls_key": trust.key_file}
    absolute = {key: _absolute(file) for key, file in {**files, "token_file": trust.token_file}.items()}
    made = Context(address=checked_address(session.address), tls=trust.tls, **absolute)
    found = contexts.load()
    contexts.save(replace(found, named={**found.named, contexts.named(name): made}))
    session.tell({"name": name, **made.document()}, f"{name}: {made.address}; use it: offloadctl context use {name}")


@context.command(short_help="Delete a context.")
@NAME
@options.common
def delete(session: Session, name: str) -> None:
    """Delete a context; the files that it names stay.

    \b
    Examples:
      offloadctl context delete prod
    """
    found = contexts.load()
    address = found[name].address
    kept = {other: one for other, one in found.named.items() if other != name}
    contexts.save(Contexts(found.current if found.current != name else None, kept))
    session.tell({"name": name, "address": address}, f"{name} is deleted")


def _absolute(file: Path | None) -> Path | None:
    return file.absolute() if file is not None else None


def _document(found: Contexts, name: str) -> dict[str, object]:
    return {"name": name, "current": name == found.current, **found.named[name].document()}


TABLE: show.Table[dict[str, object]] = show.Table(
    ("", lambda one: "*" if one["current"] else " "),
    ("NAME", "name"),
    ("ADDRESS", "address"),
    ("TLS", lambda one: "yes" if one["tls"] or one["tls_ca"] or one["tls_cert"] else "no"),
    ("TOKEN FILE", "token_file"),
)
