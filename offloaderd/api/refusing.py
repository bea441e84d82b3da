"""Services of which a daemon has some calls, or none: the others are refused with the reason."""

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from offloaderd.core.errors import Conflict


class ReadOnly:
    """The calls of a service that a daemon that only reads has; any other is refused."""

    def __init__(self, service: object = None, calls: Collection[str] = ()) -> None:
        self._service = service
        self._calls = calls

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a handler of any type
        """Return the service's own handler of a call, or one that refuses it."""
        return getattr(self._service, name) if name in self._calls else _refusal(name)


def _refusal(name: str) -> Callable[[object, object], Awaitable[None]]:
    async def refuse(_request: object, _context: object) -> None:
        raise Conflict(
            f"{name} is not possible here: this daemon only reads the bucket",
            hint="call a daemon that offloads; this one runs with daemon.read_only",
        )

    return refuse
