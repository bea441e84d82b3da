"""A session with the store, and the words for what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum


class SessionState(IntEnum):
    """State of the session, numbered as the metric `offloaderd_zk_session_state` has it."""

    LOST = 0
    SUSPENDED = 1
    CONNECTED = 2


SessionObserver = Callable[[SessionState], None]
"""Called on the loop at every change of state; LOST comes exactly once for each session that is lost."""


class StoreSession:
    """One session; ephemeral nodes live as long as it does."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._lost = asyncio.Event()

    @property
    def session_id(self) -> str:
        """Id of the session, unique among all that the store ever had."""
        return self._session_id

    @property
    def lost(self) -> asyncio.Event:
        """Set once the session is over, or can no longer be known to live; a new Session follows."""
        return self._lost
