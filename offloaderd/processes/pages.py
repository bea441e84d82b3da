"""The pages of the parent: the metrics of all processes on one page, and the status page of each, behind one gate."""

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path

from aiohttp import web

from offloaderd.api.gate import Gate
from offloaderd.core.aio import each
from offloaderd.core.errors import Transient
from offloaderd.core.health import Health
from offloaderd.core.metrics.processes import ProcessMetrics
from offloaderd.daemon.http import END, Scrape, own_metrics
from offloaderd.daemon.settings.share import socket_of
from offloaderd.daemon.siblings import ask
from offloaderd.daemon.status_page.site import StatusSite, query_of, redirect_to

LAST = END.decode().rstrip()


def gathered(metrics: ProcessMetrics, directory: Path, count: int) -> Scrape:
    """Return the function that writes the metrics of the parent and of all processes that answer."""

    async def scrape(accept: str, topics: bool | None) -> tuple[bytes, str]:
        path = "/metrics/topics" if topics else "/metrics"
        numbers = range(1, count + 1)
        answers = await each([socket_of(directory, one) for one in numbers], partial(ask, path=path, accept=accept))
        own, content_type = await own_metrics(metrics)(accept, topics)
        pages = {
            str(number): answer.body.decode()
            for number, answer in zip(numbers, answers, strict=True)
            if answer is not None and answer.status == HTTPStatus.OK
        }
        return joined({"": own.decode(), **pages}).encode(), content_type

    return scrape


def joined(pages: Mapping[str, str]) -> str:
    """Return one page of the pages of processes, family by family; each sample has the process as a label.

    The samples of process "" have theirs already.
    """
    families: dict[str, tuple[list[str], list[str]]] = {}
    is_ended = False
    for process, page in pages.items():
        heads: list[str] = []
        samples: list[str] = []
        for line in page.splitlines():
            if line == LAST:
                is_ended = True
            elif line.startswith("# "):
                name = line.split(" ", 3)[2]
                heads, samples = families.setdefault(name, ([], []))
                if line not in heads:
                    heads.append(line)
            elif line:
                samples.append(labelled(line, process) if process else line)
    lines = [line for heads, samples in families.values() for line in (*heads, *samples)]
    return "\n".join([*lines, *([LAST] if is_ended else []), ""])


def labelled(sample: str, process: str) -> str:
    """Return a sample with the process as its first label."""
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{process="{process}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{process="{process}"}} {value}'


class ProcessesSite(StatusSite):
    """The status pages, each below `processes/NUMBER/`; each process makes its own, which links to the others."""

    def __init__(self, gate: Gate, health: Health, directory: Path, count: int, *, private: bool) -> None:
        super().__init__(gate, health, private=private)
        self._directory = directory
        self._count = count

    def add_to(self, app: web.Application) -> None:
        """Add its routes to an application."""
        for name in ("", "status", "status.json"):
            app.router.add_get(f"/{name}", redirect_to(f"processes/1/{name or 'status'}"))
        numbers = "|".join(str(number) for number in range(1, self._count + 1))
        self.add_pages_to(app, f"/processes/{{number:{numbers}}}")

    async def _page(self, request: web.Request) -> web.Response:
        return await self._of_process(request, "status")

    async def _json(self, request: web.Request) -> web.Response:
        return await self._of_process(request, "status.json")

    async def _of_process(self, request: web.Request, name: str) -> web.Response:
        """Return the page of a process. Raises Transient while it does not answer."""
        number = int(request.match_info["number"])
        answer = await ask(socket_of(self._directory, number), f"/{name}{query_of(request)}")
        if answer is None:
            raise Transient(
                f"process {number} does not answer: {self._health.view.reason}", hint="try again in a moment"
            )
        return web.Response(
            status=answer.status, body=answer.body, headers={"Content-Type": answer.headers["Content-Type"]}
        )
