"""`offloaderd spark tables run` with executors in processes of their own: one is killed in the middle of a step."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloaderd.tables.declaration import TableFormat, TableMode
from tests.integration.command_line import started
from tests.integration.spark.site import CLOCK
from tests.integration.spark.test_tables_killed import ROWS, RUN, Run
from tests.patience import PATIENCE_S
from tests.real.table_rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import S3Server

EXECUTORS = ("--master", "local-cluster[2,1,1024]", "--spark-conf", "spark.executor.memory=512m")
SEGMENTS = 2
"""Steps that are there from the start, and that come behind the kill."""
STEPS = "data/*"
"""Where the tasks of a step write, each step in a folder of its own."""
LOOKS = 1000
"""Looks at the files of executors for one at the table."""


def below(parent: int) -> Iterator[int]:
    """Yield the processes that a process has started, and what these have started."""
    for task in Path(f"/proc/{parent}/task").iterdir():
        with suppress(FileNotFoundError):
            for child in map(int, (task / "children").read_text().split()):
                yield child
                with suppress(FileNotFoundError):
                    yield from below(child)


def executors(parent: int) -> list[int]:
    """Return the executors among them."""
    found = []
    for one in below(parent):
        with suppress(FileNotFoundError):
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{one}/cmdline").read_bytes():
                found.append(one)
    return found


def writes(executor: int, folder: Path) -> bool:
    """Return whether a process has a file of a step open that Java has not ended."""
    for one in Path(f"/proc/{executor}/fd").iterdir():
        with suppress(FileNotFoundError):
            at = os.readlink(one)  # noqa: PTH115 - no path of a folder
            if at.startswith(f"{folder}/") and "/_temporary/" in at and not at.endswith("(deleted)"):
                return True
    return False


def reads(executor: int, step: Path) -> bool:
    """Return whether a process has workers of Python, which write when they have read, and a step has no file yet."""
    return next(below(executor), None) is not None and step.is_dir() and not any(step.rglob("*.parquet"))


def killed(parent: int, folder: Path, mode: TableMode) -> bool:
    """Kill an executor in a step; it is stopped first with what it has started, so that it cannot end meanwhile."""
    step = max(folder.glob(STEPS), default=folder, key=lambda one: one.stat().st_mtime_ns)
    for one in executors(parent) if step != folder else ():
        with suppress(FileNotFoundError, ProcessLookupError):
            is_in_step = partial(reads, one, step) if mode is TableMode.APPEND else partial(writes, one, folder)
            if is_in_step():
                processes = [one, *below(one)]
                for process in processes:
                    os.kill(process, signal.SIGSTOP)
                dies = is_in_step()
                for process in processes:
                    os.kill(process, signal.SIGKILL if dies else signal.SIGCONT)
                if dies:
                    return True
    return False


@pytest.mark.parametrize(
    ("form", "mode"),
    [
        pytest.param(TableFormat.ICEBERG, TableMode.APPEND, id="append"),
        pytest.param(TableFormat.DELTA, TableMode.UPSERT, id="upsert"),
    ],
)
async def test_an_executor_that_dies_in_a_step_loses_and_repeats_nothing(
    tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str, form: TableFormat, mode: TableMode
) -> None:
    """Another executor does its work: each message is in the table once, and nothing is left of the one that died."""
    run = Run(tmp_path, zookeeper, s3_server, s3_bucket)
    lake = tmp_path / "lake"
    folder = (lake if form is TableFormat.DELTA else lake / "public_default") / "orders"
    upserts = {"mode": mode, "key": ("id",)} if mode is TableMode.UPSERT else {}
    await run.declare("orders", lake, form, **upserts)
    await run.grow(SEGMENTS)
    async with started(run.process_site, "offloaderd", *RUN, *EXECUTORS, "--json", own_session=True) as command:

        async def written() -> list[int]:
            assert command.process.returncode is None, command.told()
            await CLOCK.sleep(0.2)
            rows = await asyncio.to_thread(rows_of, form, lake, "orders")
            return [row["id"] for row in rows]

        looks = 0
        async with asyncio.timeout(PATIENCE_S):
            while not killed(command.process.pid, folder, mode):
                assert command.process.returncode is None, command.told()
                looks += 1
                if looks % LOOKS == 0 and folder.exists() and len(await written()) == run.ledgers * ROWS:
                    await run.grow(SEGMENTS)  # it was too fast so far
                await CLOCK.sleep(0.002)
        await run.grow(SEGMENTS)
        async with asyncio.timeout(PATIENCE_S):
            while len(ids := await written()) < run.ledgers * ROWS:
                pass
        command.process.terminate()
        code, _ = await command.ended()
        assert code == 0, command.told()
    assert ids == list(range(run.ledgers * ROWS))
    dead = rows_of(form, lake, "orders_dead_letters")
    assert [row["_ledger_id"] for row in dead] == list(range(1, run.ledgers + 1))
    assert not list(folder.rglob("_temporary")), "nothing of the attempt that was lost"
