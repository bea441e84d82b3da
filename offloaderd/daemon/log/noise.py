"""What libraries say again and again, and what is no fault of ours, is left out of the log.

ZooKeeper's client warns at each try to connect, some times a second while ZooKeeper is away; our own events tell when a
session is suspended, lost and begun. A client that leaves in the middle of an answer is no error of the server.
"""

import logging

QUIET_S = 60.0
"""The same words of ZooKeeper's client are not written again within this time."""


class Noise(logging.Filter):
    """Lets through what is news. Times are those of the records."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether a record is to be written."""
        if record.name.startswith("kazoo"):
            return record.levelno != logging.WARNING or self._is_a_change(record)
        if record.name.startswith("aiohttp"):
            return not (record.exc_info and isinstance(record.exc_info[1], ConnectionError))
        return True

    def _is_a_change(self, record: logging.LogRecord) -> bool:
        words = str(record.msg)
        if record.created - self._said.get(words, float("-inf")) < QUIET_S:
            return False
        self._said[words] = record.created
        return True
