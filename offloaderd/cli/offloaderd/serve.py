"""`offloaderd serve` and `health`: run the daemon, and check whether it is alive or ready."""

from __future__ import annotations

import asyncio
import http.client
import os
import ssl
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from offloaderd.cli.program import FAILED, OK
from offloaderd.cli.settings import CONFIG
from offloaderd.core.errors import InvalidConfig
from offloaderd.daemon.process import freeze_heap, limit_arenas, relax_gc

if TYPE_CHECKING:
    from offloaderd.daemon.settings import Settings


@click.command()
@CONFIG
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    help="Run so many daemons under one parent, for so many cores; over daemon.processes of the settings.",
)
@click.option(
    "--read-only",
    is_flag=True,
    help="Serve what the bucket holds, without ZooKeeper, brokers and bookies; over daemon.read_only of the settings.",
)
@click.option("--bucket", metavar="NAME", help="The bucket; over objects.bucket of the settings.")
@click.option("--as-process", type=(int, int, click.Path(path_type=Path)), hidden=True)
def serve(
    *,
    config: Path | None,
    processes: int | None,
    read_only: bool,
    bucket: str | None,
    as_process: tuple[int, int, Path] | None,
) -> int:
    """Run the daemon until SIGTERM or SIGINT, which drain it; a second one cuts the drain short.

    SIGHUP makes it read its settings again, as `offloadctl reload` does. Every setting can also be given in the
    environment: OFFLOADERD__SECTION__SETTING. While ZooKeeper or the bucket cannot be reached the daemon waits for
    them and reports it on /readyz. With several processes signals reach all of them, one that ends is replaced, and
    budgets of memory and disk are divided among them.

    With --read-only it needs the bucket alone, and read rights on it: it serves reads, seeks, and a broker's offloaded
    ledgers, and writes nothing. docs/read-only.md says what it knows, and how soon.

    \b
    Examples:
      offloaderd serve --config /etc/offloaderd/offloaderd.toml
      offloaderd serve --config /etc/offloaderd/offloaderd.toml --processes 8
      OFFLOADERD__OBJECTS__BUCKET=offload offloaderd serve
      OFFLOADERD__DAEMON__CLUSTER=prod offloaderd serve --read-only --bucket offload
    """
    limit_arenas()
    relax_gc()
    from offloaderd.daemon import log  # noqa: PLC0415 - the daemon's libraries take long to load; --help need not wait
    from offloaderd.daemon.daemon import Daemon, run  # noqa: PLC0415
    from offloaderd.daemon.log import parsed_levels  # noqa: PLC0415
    from offloaderd.daemon.settings import load  # noqa: PLC0415
    from offloaderd.daemon.settings.share import Process, share_of  # noqa: PLC0415

    options = {
        **({} if processes is None else {"daemon.processes": str(processes)}),
        **({"daemon.read_only": "true"} if read_only else {}),
        **({} if bucket is None else {"objects.bucket": bucket}),
    }
    host = partial(load, config, os.environ, options)
    settings = host()
    number = as_process[0] if as_process is not None else None
    log.configure(settings.log.level, settings.log.format, modules=parsed_levels(settings.log.levels), process=number)
    kind = Daemon
    if settings.daemon.read_only:
        from offloaderd.daemon.reader_daemon import ReaderDaemon  # noqa: PLC0415

        kind = ReaderDaemon
    if as_process is not None:
        one, port, directory = as_process
        process = Process(number=one, count=settings.daemon.processes, port=port, directory=directory)

        def share() -> Settings:
            return share_of(host(), one)

        return asyncio.run(
            run(share(), on_ready=lambda _: freeze_heap(), reread=share, environ=os.environ, process=process, kind=kind)
        )
    if settings.daemon.processes > 1:
        from offloaderd.processes.serving import run_processes  # noqa: PLC0415

        passed_on = [*(["--read-only"] if read_only else []), *([] if bucket is None else ["--bucket", bucket])]
        return asyncio.run(run_processes(settings, config, reread=host, environ=os.environ, options=passed_on))
    return asyncio.run(run(settings, on_ready=lambda _: freeze_heap(), reread=host, environ=os.environ, kind=kind))


ANSWER_S = 3.0
"""How long connecting, and each answer, may take."""

REASON_BYTES = 2000
HERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - where a daemon that listens everywhere is
"""The loopback address for a server that listens on all addresses."""


@click.command()
@CONFIG
@click.option("--ready", is_flag=True, help="Check whether it accepts calls, not only whether its event loop runs.")
def health(*, config: Path | None, ready: bool) -> int:
    """Exit with 0 if the daemon with these settings is alive, with 1 if it is not; for health checks and scripts.

    Asks /healthz, or /readyz with --ready, where http.host and http.port say. Alive, not ready, is what a restart is
    for: a daemon that waits for ZooKeeper or the bucket is not helped by one. With http.tls = "mutual" the daemon's own
    certificate is shown; where its authority is not that of the clients, the refusal is a sign of life as well.
    Mistakes in other sections do not matter here.

    \b
    Examples:
      offloaderd health
      offloaderd health --config /etc/offloaderd/offloaderd.toml --ready
    """
    from offloaderd.daemon.settings import usable  # noqa: PLC0415 - --help need not wait for it

    settings = usable(config, os.environ)
    if not settings.http.port:
        raise InvalidConfig("http.port = 0 takes any free port", hint="set a port number")
    healthy, text = ask(settings, "/readyz" if ready else "/healthz")
    click.echo(text, err=not healthy)
    return OK if healthy else FAILED


def ask(settings: Settings, path: str) -> tuple[bool, str]:
    """Return whether the daemon answered `path` with 200, and its answer or the error."""
    where = HERE.get(settings.http.host, settings.http.host.strip("[]"))
    try:
        connection = _connection(settings, where)
        connection.connect()
    except (OSError, ValueError) as error:
        return False, f"the daemon at {where}:{settings.http.port} does not answer: {error}"
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read(REASON_BYTES).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        if settings.http.tls == "mutual" and not isinstance(error, TimeoutError):
            refused = "the daemon answers and does not accept its own certificate as a client's"
            return path == "/healthz", f"{refused}: sign it with tls.client_ca_file to see its answer"
        return False, f"the daemon at {where}:{settings.http.port} does not answer: {error}"
    else:
        return answer.status == http.client.OK, text
    finally:
        connection.close()


def _connection(settings: Settings, where: str) -> http.client.HTTPConnection:
    port, tls = settings.http.port, settings.tls
    if settings.http.tls == "off":
        return http.client.HTTPConnection(where, port, timeout=ANSWER_S)
    # It is the port of this machine, and only the path is sent: the name in the certificate does not matter.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if settings.http.tls == "mutual" and tls.cert_file and tls.key_file:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    return http.client.HTTPSConnection(where, port, timeout=ANSWER_S, context=context)
