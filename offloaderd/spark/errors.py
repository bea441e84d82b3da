"""Errors between the package and Spark: ours without frames, and the message in the pages of Spark's.

Spark takes the text of any error in Python, with all frames and causes before the message, and adds Java's frames. So
our errors are raised with one frame and no cause, and an error of Spark is searched for that message.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, ParamSpec, TypeVar

from offloaderd.core.errors import OffloaderError

P = ParamSpec("P")
T = TypeVar("T")

OURS = re.compile(
    r"^offloaderd\.[\w.]+: (.+?)(?=\n\s+at |\n SQLSTATE|\n\n|\nDriver stacktrace|\Z)", re.MULTILINE | re.DOTALL
)
CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
OTHERS = re.compile(r"^[\w.]+(?:Error|Exception): .+$", re.MULTILINE)
HEAD = re.compile(r"^: (.+)$", re.MULTILINE)
"""An exception of Java without a cause: py4j writes it after a line that only names the call."""


def brief(call: Callable[P, T]) -> Callable[P, T]:
    """Return a function or generator that raises our errors with a single frame, and without their cause.

    Our frames do not help a reader of such a message. All other errors are faults, and keep their frames.
    """
    if isgeneratorfunction(call):

        @wraps(call)
        def yielded(*args: P.args, **kwargs: P.kwargs) -> Any:  # noqa: ANN401 - as the generator's
            try:
                return (yield from call(*args, **kwargs))
            except OffloaderError as error:
                raise error.with_traceback(None) from None

        return yielded

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except OffloaderError as error:
            raise error.with_traceback(None) from None

    return called


@contextmanager
def from_spark(what: str = "") -> Iterator[None]:
    """Raise OffloaderError for an error of Spark: `what`, then the message of our error in a task, if it was one."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped] # noqa: PLC0415 - optional
    from pyspark.errors import PySparkException  # noqa: PLC0415 - optional, and takes a second

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise OffloaderError(what + gist(str(error))) from error


def gist(text: str) -> str:
    """Return the message in Spark's text about a failure: ours, else that of the last cause."""
    if (ours := OURS.search(text)) is not None:
        return ours[1].strip()
    found = CAUSE.findall(text) or OTHERS.findall(text) or HEAD.findall(text) or text.strip().splitlines()[:1]
    return str(found[-1]).strip() if found else "Spark says nothing"
