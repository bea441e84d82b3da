"""The process from which an executor forks its Python workers: Spark's own, with our modules loaded.

    spark-submit --conf spark.python.daemon.module=offloaderd.spark.workers ...

A query with LIMIT has enough rows while its tasks still read. Spark then ends the Python process of each, and starts
others: without this module, seconds for imports, and a page of traces for the closed pipe.

A process that forks must not have threads, so modules that start some are not loaded here: pyarrow, pandas. What is
loaded is never freed, so no collection of cycles visits it, and collections are as rare as in the daemon.
"""

from collections.abc import Callable
from socket import socket

import pyspark.sql.datasource
import pyspark.worker  # noqa: F401 - as the others, for the workers
from pyspark import daemon

import offloaderd.objects.s3.store
import offloaderd.read.segments  # noqa: F401 - as above
from offloaderd.daemon.process import freeze_heap, relax_gc

ENDED = 1
"""The result by which Spark's loop ends a worker."""


def quiet(worker: Callable[[socket, bool], int]) -> Callable[[socket, bool], int]:
    """Return a worker that ends without traces when Spark has closed the pipe, since it has enough rows."""

    def work(sock: socket, authenticated: bool) -> int:
        try:
            return worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return ENDED

    return work


def main() -> None:
    """Fork workers until Spark has enough."""
    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment] # the manager calls it by this name
    relax_gc()
    freeze_heap()
    daemon.manager()


if __name__ == "__main__":
    main()
