"""The worked example of the documentation, run as it stands there, on a real ZooKeeper, S3 server and daemon."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from tests.integration.processes import DaemonProcess, Site
from tools import notebook

if TYPE_CHECKING:
    from tests.servers import S3Server


SVG = "{http://www.w3.org/2000/svg}"


def shape(section: str) -> str:
    """Return a section without its numbers, which are of one run."""
    return re.sub(r"[0-9]+(\.[0-9]+)?", "#", section)


async def test_the_worked_example_runs_and_its_section_is_what_it_says(
    tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str
) -> None:
    """Every cell runs; the section differs from the committed one in numbers alone; the picture has both of its curves.

    With NOTEBOOK=write in the environment section and picture are written to the documentation.
    """
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    picture = tmp_path / "lag.svg"
    async with DaemonProcess(site) as daemon:
        await daemon.serving()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        more = {"PATH": path, "OFFLOADCTL_ADDRESS": daemon.address, "PICTURE": str(picture), "MPLBACKEND": "svg"}
        with (tmp_path / "said").open("wb") as said:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tools.notebook",
                cwd=notebook.ROOT,
                env={**site.process_environment(1, 2), **more, "MPLCONFIGDIR": str(tmp_path)},
                stdout=asyncio.subprocess.PIPE,
                stderr=said,
            )
            try:
                answer, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
    assert process.returncode == 0, (tmp_path / "said").read_text()[-3000:]
    made = answer.decode()
    if os.environ.get("NOTEBOOK") == "write":
        (notebook.ROOT / notebook.PAGE).write_text(notebook.page_with(made))
        (notebook.ROOT / notebook.PICTURE).write_bytes(picture.read_bytes())
    assert shape(made) == shape(notebook.committed_section())
    numbers = re.search(r"(\d+) segments; an entry was safe after ([\d.]+) s, the slowest after ([\d.]+) s", made)
    assert numbers is not None
    assert int(numbers[1]) >= 3
    assert 0 < float(numbers[2]) <= float(numbers[3])
    assert int(re.findall(r"(\d+) entries, \d+ a minute\n", made)[0]) > 3000
    for drawing in (picture, notebook.ROOT / notebook.PICTURE):
        groups = ElementTree.parse(drawing).iter(f"{SVG}g")  # noqa: S314 - we have drawn it
        curves = {one.get("id"): one.find(f"{SVG}path") for one in groups}
        for name in ("rate", "lag"):
            curve = curves[name]
            assert curve is not None
            assert curve.get("d", "").count("L") > 5
