"""Errors at the border to Spark: what it is told of ours, and what is left of its own pages that is worth reading.

Spark takes the text of whatever Python raises, with all frames and causes before the message, and puts Java's frames
behind it. So ours is raised with one frame and no cause; and what comes back is searched for that message.
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
"""What Java threw without a cause: py4j writes it behind a line that says no more than which call it was."""


def brief(call: Callable[P, T]) -> Callable[P, T]:
    """Return the same function or generator, whose errors of ours have the frame of this one alone, and no cause.

    There is nothing to learn from our frames for who reads such a message; anything else is a fault, and keeps them.
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
    """Raise OffloaderError for what Spark raises, with the message that an error of ours had in a task, if it was one.

    `what` is put before it.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped] # noqa: PLC0415 - optional
    from pyspark.errors import PySparkException  # noqa: PLC0415 - optional, and takes a second

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise OffloaderError(what + gist(str(error))) from error


def gist(said: str) -> str:
    """Return the message in what Spark says of a failure: ours, else that of the last cause."""
    if (ours := OURS.search(said)) is not None:
        return ours[1].strip()
    found = CAUSE.findall(said) or OTHERS.findall(said) or HEAD.findall(said) or said.strip().splitlines()[:1]
    return str(found[-1]).strip() if found else "Spark says nothing"
