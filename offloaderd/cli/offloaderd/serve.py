"""`offloaderd serve`: run the daemon."""

import asyncio
import os
from functools import partial
from pathlib import Path

import click

from offloaderd.cli.options.place import CONFIG
from offloaderd.daemon.memory import freeze_heap, limit_arenas, relax_gc


@click.command()
@CONFIG
def serve(config: Path | None) -> int:
    """Run the daemon until SIGTERM or SIGINT, which drain it; a second one cuts the drain short.

    SIGHUP makes it read its settings again, as `offloadctl reload` does. Every setting can also be given in the
    environment: OFFLOADERD__SECTION__SETTING. While ZooKeeper or the bucket cannot be reached the daemon waits for
    them and reports it on /readyz.

    \b
    Examples:
      offloaderd serve --config /etc/offloaderd/offloaderd.toml
      OFFLOADERD__OBJECTS__BUCKET=offload offloaderd serve
    """
    limit_arenas()
    relax_gc()
    from offloaderd.daemon.daemon import run  # noqa: PLC0415
    from offloaderd.daemon.log import log  # noqa: PLC0415 - the daemon's libraries take long to load; --help need not wait
    from offloaderd.daemon.log.modules import parsed_levels  # noqa: PLC0415
    from offloaderd.daemon.settings import load  # noqa: PLC0415

    reread = partial(load, config, os.environ)
    settings = reread()
    log.configure(settings.log.level, settings.log.format, modules=parsed_levels(settings.log.levels))
    return asyncio.run(run(settings, on_ready=lambda _: freeze_heap(), reread=reread, environ=os.environ))
