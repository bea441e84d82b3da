"""What Spark's Python workers are forked from: loaded once, without threads, and quiet about a pipe that was closed."""

from __future__ import annotations

import json
import subprocess
import sys
from socket import socket

import pytest

from offloaderd.daemon.process import COLLECTOR_THRESHOLDS
from offloaderd.spark.workers import ENDED, quiet

LOADED = """
import json, sys, threading
from pathlib import Path
import offloaderd.spark.workers
tasks = Path("/proc/self/task")
threads = len(list(tasks.iterdir())) if tasks.is_dir() else threading.active_count()
names = {"pyarrow", "pandas", "numpy", "aiobotocore", "pyspark", "pyspark.sql.worker.data_source_pushdown_filters"}
print(json.dumps([threads, sorted(names & sys.modules.keys())]))
"""


def test_what_is_loaded_starts_no_threads() -> None:
    """A process with threads must not be forked: what starts them is left to workers, and what says what they plan."""
    said = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True).stdout
    assert json.loads(said) == [1, ["aiobotocore", "pyspark"]]


COLLECTED = """
import gc
from pyspark import daemon
from offloaderd.spark import workers
daemon.manager = lambda: print(gc.get_threshold()[0], gc.get_freeze_count() > 10_000)
workers.main()
"""


def test_collections_of_cycles_leave_out_what_was_loaded() -> None:
    """Workers are forked from a process whose objects are frozen, and collect as rarely as the daemon."""
    said = subprocess.run([sys.executable, "-c", COLLECTED], capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(COLLECTOR_THRESHOLDS[0]), "True"]


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_pipe_that_spark_has_closed_is_no_error(error: type[Exception]) -> None:
    """As a query with LIMIT closes it, which has enough rows; anything else is raised, and shown by Spark."""

    def work(_: socket, known: bool) -> int:
        if known:
            raise error
        raise ZeroDivisionError

    with socket() as sock:
        assert quiet(work)(sock, True) == ENDED
        with pytest.raises(ZeroDivisionError):
            quiet(work)(sock, False)
        assert quiet(lambda *_: 0)(sock, True) == 0
