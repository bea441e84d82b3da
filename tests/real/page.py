"""The status page in a real browser: `make test-page`. Not part of `make test`, which asks for no browser.

A headless Chromium is driven over its DevTools protocol, which needs no library of its own: the daemon's aiohttp speaks
it. BROWSER names another one; SCREENSHOTS is a directory for pictures of the page.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from base64 import b64decode
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from offloaderd.core.model import TopicName
from tests.patience import PATIENCE_S
from tests.unit.daemon.scene import HOSTILE, Scene, lost, opened, stalled, status, topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NARROW = 600
"""Pixels; a narrower screen is a phone's."""

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


class Refused(Exception):
    """The browser did not do what it was told."""


@dataclass
class Browser:
    """One page of a browser."""

    socket: aiohttp.ClientWebSocketResponse
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    ids: count[int] = field(default_factory=lambda: count(1))

    async def ask(self, method: str, **params: Any) -> Any:  # noqa: ANN401 - JSON
        """Send a command and return its result; events on the way are kept."""
        number = next(self.ids)
        message = {"id": number, "method": method, "params": params}
        await self.socket.send_json(message | ({"sessionId": self.session} if self.session else {}))
        while True:
            answer = await self.socket.receive_json(timeout=PATIENCE_S)
            if answer.get("id") == number:
                if "error" in answer:
                    raise Refused(method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    async def run(self, script: str) -> Any:  # noqa: ANN401 - JSON
        """Return the value of an expression in the page."""
        found = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true in the page."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(Refused):  # the page that was asked has gone meanwhile
                    if await self.run(script):
                        return
                await asyncio.sleep(0.1)  # noqa: TID251 - what happens in a browser has no clock of ours

    async def go(self, address: str) -> None:
        """Open an address, and wait until its script has run."""
        await self.run("window.before = true")
        await self.ask("Page.navigate", url=address)
        await self.until("!window.before && document.readyState === 'complete' && !!document.getElementById('live')")

    async def screen(self, width: int, height: int) -> None:
        """Give the page a screen of so many pixels: a phone's where it is narrow."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < NARROW}
        await self.ask("Emulation.setDeviceMetricsOverride", **size)

    async def picture(self, name: str) -> None:
        """Take a picture of the screen, if pictures are wanted."""
        directory = os.environ.get("SCREENSHOTS")
        found = await self.ask("Page.captureScreenshot", format="png")
        if directory:
            Path(directory, f"{name}.png").write_bytes(b64decode(found["data"]))

    def complaints(self) -> list[str]:
        """Return what the page's console, its policy or its scripts complained of."""
        kinds = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in kinds]


@pytest.fixture
def binary() -> str:
    """A browser; without one this test fails, as it was asked for."""
    found = os.environ.get("BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    assert found, (
        f"no browser: install one (Debian: apt-get install {BROWSERS[0]}), or name it: make test-page BROWSER="
    )
    return found


@pytest.fixture
async def browser(binary: str, tmp_path: Path) -> AsyncIterator[Browser]:
    """A browser with an empty page."""
    async with (
        started(binary, tmp_path) as address,
        aiohttp.ClientSession() as client,
        client.ws_connect(address, max_msg_size=0) as socket,
    ):
        page = Browser(socket)
        target = await page.ask("Target.createTarget", url="about:blank")
        attached = await page.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.ask(f"{domain}.enable")
        yield page


@asynccontextmanager
async def started(binary: str, directory: Path) -> AsyncIterator[str]:
    """Run a browser; yields the address of its DevTools. It ends with all of its processes."""
    profile = directory / "profile"
    process = await asyncio.create_subprocess_exec(
        binary,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        told = profile / "DevToolsActivePort"
        async with asyncio.timeout(PATIENCE_S):
            while not (told.exists() and told.read_text().count("\n")):
                assert process.returncode is None, "the browser ended before it listened"
                await asyncio.sleep(0.1)  # noqa: TID251 - another program's file has no event
        port, path = told.read_text().split()
        yield f"ws://127.0.0.1:{port}{path}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def scene() -> Scene:
    """Make a daemon with some hundred topics, some of them in trouble, some with names that mean harm."""
    hostile = [
        replace(status(4000 + at), topic=TopicName("public", "default", name)) for at, name in enumerate(HOSTILE)
    ]
    failing = [stalled(1, "throttled: the bucket asks for fewer requests"), lost(2)]
    down = "connection refused by s3.example:443"
    return Scene([*failing, *(status(number) for number in range(3, 500)), *hostile], down=down)


async def test_the_page_in_a_browser(browser: Browser) -> None:
    """It draws, runs its script under its policy, refreshes in place, pauses, tells of a daemon that is gone."""
    shown = scene()
    shown.health.serving()
    await shown.an_hour()
    async with opened(shown) as client:
        await browser.go(f"{shown.address}/status?q=topic-")
        assert await browser.run("document.querySelectorAll('tbody tr').length") == 50 + 3
        assert await browser.run("getComputedStyle(document.querySelector('.troubles')).borderLeftWidth") == "6px"
        assert await browser.run("document.querySelector('polyline').getBBox().width > 400")
        assert await browser.run("document.documentElement.scrollWidth <= innerWidth")
        await browser.screen(1280, 1080)
        await browser.picture("status")
        await browser.run(
            "document.querySelector('main').dataset.mark = 'old'; document.getElementById('q').value = 'typing'"
        )
        await browser.run("document.querySelector('tbody a').focus(); window.link = document.activeElement.href; 1")
        shown.statuses[0] = stalled(1, "another reason altogether")
        await shown.clock.advance(5)
        await browser.until("document.querySelector('.troubles').textContent.includes('another reason altogether')")
        assert await browser.run("document.querySelector('main').dataset.mark") == "old"
        assert await browser.run("document.getElementById('q').value") == "typing"
        assert await browser.run("document.activeElement.href === window.link")
        await browser.run("document.getElementById('pause').click()")
        assert await browser.run("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
        await browser.run("document.getElementById('pause').click()")
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        before = await browser.run("getComputedStyle(document.body).backgroundColor")
        await browser.ask("Emulation.setEmulatedMedia", features=dark)
        assert await browser.run("getComputedStyle(document.body).backgroundColor") != before
        await browser.go(f"{shown.address}/status?topic={topic(1)}")
        assert await browser.run("document.querySelectorAll('figure polyline').length") == 2
        await browser.screen(1280, 720)
        await browser.picture("topic-dark")
        await client.close()
    await browser.until("!document.getElementById('away').hidden")
    assert all("ERR_CONNECTION_REFUSED" in one for one in browser.complaints())


@pytest.mark.parametrize("width", [320, 390])
async def test_the_page_on_a_phone(browser: Browser, width: int) -> None:
    """Everything is as wide as the screen or scrolls by itself; troubles come first; a tap on a heading sorts."""
    shown = scene()
    shown.health.serving()
    await shown.an_hour()
    await browser.screen(width, 844)
    async with opened(shown):
        for name, query in (("status", "?q=topic-"), ("topic", f"?topic={topic(1)}")):
            await browser.go(f"{shown.address}/status{query}")
            await browser.picture(f"{name}-{width}")
            assert await browser.run("innerWidth") == width
            assert await browser.run("document.documentElement.scrollWidth") <= width
            assert await browser.run("parseFloat(getComputedStyle(document.body).fontSize)") >= 12
        await browser.go(f"{shown.address}/status?q=topic-")
        tops = "(one => one.getBoundingClientRect().top)"
        assert await browser.run(
            f"{tops}(document.querySelector('.troubles')) < {tops}(document.querySelector('table'))"
        )
        await browser.run("window.before = true; document.querySelector('thead a[href*=\"sort=topic\"]').click()")
        await browser.until("!window.before && document.readyState === 'complete'")
        names = await browser.run("Array.from(document.querySelectorAll('tbody th a'), one => one.textContent)")
        assert len(names) > 40
        assert names == sorted(names)
    assert not browser.complaints()


async def test_hostile_names_in_a_browser(browser: Browser) -> None:
    """No name runs, none becomes an element, each link leads to its own topic; nobody else is asked for anything."""
    shown = scene()
    async with opened(shown):
        await browser.go(f"{shown.address}/status?q=public/default&size=500")
        names = await browser.run("Array.from(document.querySelectorAll('tbody th a'), one => one.textContent)")
        assert len(names) == len(HOSTILE)
        assert (
            await browser.run("document.querySelectorAll('main script, main img, [onerror], [onmouseover]').length")
            == 0
        )
        links = await browser.run("Array.from(document.querySelectorAll('tbody th a'), one => one.href)")
        for name, link in zip(names, links, strict=True):
            await browser.go(link)
            assert await browser.run("document.querySelector('h2').textContent") == name
        await browser.go(f"{shown.address}/status?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E")
        assert await browser.run("document.getElementById('q').value") == '"><script>alert(1)</script>'
    assert not browser.complaints()
    asked = [
        event["params"]["request"]["url"] for event in browser.events if event["method"] == "Network.requestWillBeSent"
    ]
    assert asked
    assert all(url.startswith(shown.address) for url in asked)
    assert not [event for event in browser.events if event["method"] == "Page.javascriptDialogOpening"]
