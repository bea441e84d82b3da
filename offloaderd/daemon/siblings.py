"""Calls between the processes of a host, by HTTP over the Unix sockets in their parent's directory.

Only the daemon's user can open the sockets, so there is neither authentication nor encryption. Log levels go from the
process that a caller reached to the others.
"""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import aiohttp
import structlog
from aiohttp import web

from offloaderd.core.aio import each
from offloaderd.core.errors import InvalidInput
from offloaderd.daemon.log_levels import LogLevels
from offloaderd.daemon.settings.share import Process

ANSWER_S = 5.0
"""Longest time for an answer."""

LOG_LEVEL = "/log-level"

log = structlog.get_logger(__name__)


class Answer(NamedTuple):
    """Status, headers and body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def ask(socket: Path, path: str, *, method: str = "GET", accept: str = "") -> Answer | None:
    """Send a request to a process; None without an answer. A redirect is an answer."""
    with suppress(OSError, TimeoutError, aiohttp.ClientError):
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(socket)), timeout=aiohttp.ClientTimeout(total=ANSWER_S)
            ) as session,
            session.request(
                method, f"http://process{path}", headers={"Accept": accept} if accept else {}, allow_redirects=False
            ) as answer,
        ):
            return Answer(answer.status, answer.headers, await answer.read())
    return None


def log_level_route(levels: LogLevels) -> web.RouteDef:
    """Return the route by which another process has this one set or reset a level."""

    async def set_level(request: web.Request) -> web.Response:
        module, level = request.query["module"], request.query["level"]
        try:
            if level:
                levels.raised(module, level, float(request.query["seconds"]))
            else:
                levels.fallen(module)
        except InvalidInput as error:  # one that was started meanwhile has no level to reset
            return web.Response(status=400, text=error.message)
        return web.Response()

    return web.post(LOG_LEVEL, set_level)


async def pass_level_on(process: Process, module: str, level: str, seconds: float) -> None:
    """Have the other processes set the level of a module, or reset it. One that does not answer has its settings'."""
    path = f"{LOG_LEVEL}?{urlencode({'module': module, 'level': level, 'seconds': seconds})}"
    answers = await each(process.others, partial(ask, path=path, method="POST"))
    for socket, answer in zip(process.others, answers, strict=True):
        if answer is None:
            log.warning("log.level_not_passed_on", module=module, to=int(socket.name))


def pass_reload_on() -> None:
    """Have the parent, and so all processes, read the settings again."""
    os.kill(os.getppid(), signal.SIGHUP)
