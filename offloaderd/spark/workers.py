"""What an executor forks its Python workers from: Spark's own, with the modules loaded that each of them needs.

    spark-submit --conf spark.python.daemon.module=offloaderd.spark.workers ...

A query with LIMIT has enough rows while its tasks still read. Spark then ends the Python of each, so the next one has
to be started: seconds for imports that are made here once, and a page of traces for the pipe that was closed.

Only what starts no threads is loaded here, which a process that forks must not have: not pyarrow, nor pandas.
"""

from collections.abc import Callable
from socket import socket

import pyspark.sql.datasource
import pyspark.worker  # noqa: F401 - as the others, for the workers
from pyspark import daemon

import offloaderd.objects.s3.store
import offloaderd.read.segments.reader  # noqa: F401 - as above

GONE = 1
"""What tells Spark's loop that this worker has no more to do."""


def quiet(worker: Callable[[socket, bool], int]) -> Callable[[socket, bool], int]:
    """Return the same work, which ends without a word when Spark has closed the pipe: it has enough rows."""

    def work(sock: socket, authenticated: bool) -> int:
        try:
            return worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return GONE

    return work


if __name__ == "__main__":
    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment] # which the next calls by this name
    daemon.manager()
