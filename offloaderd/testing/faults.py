"""Adapters that fail on demand, before or after the real one has acted.

A fault after the act is a lost answer: the caller gets OutcomeUnknown, and the store has acted.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Literal

from offloaderd.core.errors import OutcomeUnknown
from offloaderd.metadata.port import MetadataStore, Session
from offloaderd.objects.port import ObjectInfo, PartInfo, PartRules, SegmentStore, UploadInfo

When = Literal["before", "after"]
Plan = Callable[[str, str, When], Exception | None]
"""Called with (operation, key or path, before or after the act); returns the error to raise, or None."""


class Faults:
    """A plan that fails the named operations a number of times, and counts calls."""

    def __init__(self) -> None:
        self._planned: list[tuple[str, When, Exception, int]] = []
        self.asked: list[str] = []
        self.fired = 0

    def fail(self, operation: str, error: Exception, *, times: int = 1) -> None:
        """Fail the next calls of an operation before they reach the store; -1: for ever."""
        self._planned.append((operation, "before", error, times))

    def lose_answer(self, operation: str, *, times: int = 1) -> None:
        """Let the next calls of an operation act and lose their answers."""
        self._planned.append((operation, "after", OutcomeUnknown(f"the answer of {operation} was lost"), times))

    def heal(self) -> None:
        """Drop all planned faults."""
        self._planned.clear()

    def __call__(self, operation: str, key: str, when: When) -> Exception | None:
        """Return the planned error of a call, if any."""
        if when == "before":
            self.asked.append(f"{operation} {key}")
        for number, (planned, moment, error, times) in enumerate(self._planned):
            if planned == operation and moment == when and times:
                self._planned[number] = (planned, moment, error, times - 1)
                self.fired += 1
                return error
        return None


class _Faulty:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    async def _do(self, operation: str, key: str, act: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - any result
        if error := self._plan(operation, key, "before"):
            raise error
        result = await act()
        if error := self._plan(operation, key, "after"):
            raise error
        return result


def _call(name: str, operation: str = "", key: Callable[[Any], str] = str) -> Callable[..., Any]:
    """Return a method that calls that of the real store with faults; `key` makes the fault's of its first argument."""

    async def call(self: "FaultyStore | FaultyMetadata", first: object, *others: object, **named: object) -> object:
        method: Callable[..., Awaitable[object]] = getattr(self._store, name)
        return await self._do(operation or name, key(first), lambda: method(first, *others, **named))

    return call


class FaultyStore(_Faulty):
    """A SegmentStore with faults; listings never fail half way."""

    def __init__(self, store: SegmentStore, plan: Plan) -> None:
        super().__init__(plan)
        self._store = store

    def at(self, bucket: str) -> "FaultyStore":
        """See SegmentStore; the faults are those of all buckets."""
        there = self._store.at(bucket)
        return self if there is self._store else FaultyStore(there, self._plan)

    get: Callable[..., Coroutine[Any, Any, bytes]] = _call("get")
    get_pieces = _call("get_pieces", "get")
    head: Callable[..., Coroutine[Any, Any, ObjectInfo]] = _call("head")
    put: Callable[..., Coroutine[Any, Any, ObjectInfo]] = _call("put")
    delete = _call("delete", key=" ".join)
    create_upload = _call("create_upload")
    upload_part = _call("upload_part")
    list_parts = _call("list_parts")
    complete_upload = _call("complete_upload")
    abort_upload = _call("abort_upload")

    @property
    def parts(self) -> PartRules:
        """See MultipartStore."""
        return self._store.parts

    async def made_of(self, stored: ObjectInfo, parts: Sequence[PartInfo]) -> bool | None:
        """See MultipartStore."""
        return await self._store.made_of(stored, parts)

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """See ObjectReader."""
        if error := self._plan("list", prefix, "before"):
            raise error
        async for info in self._store.list(prefix):
            yield info

    async def list_uploads(self, prefix: str = "") -> AsyncGenerator[UploadInfo, None]:
        """See MultipartStore."""
        if error := self._plan("list_uploads", prefix, "before"):
            raise error
        async for upload in self._store.list_uploads(prefix):
            yield upload


class FaultyMetadata(_Faulty):
    """A MetadataStore with faults; watches and sessions are those of the real one."""

    def __init__(self, store: MetadataStore, plan: Plan) -> None:
        super().__init__(plan)
        self._store = store

    get = _call("get")
    children = _call("children")
    create = _call("create")
    replace = _call("replace")
    delete = _call("delete")
    transact = _call("transact", key=lambda steps: " ".join(step.path for step in steps))

    def watch(self, path: str) -> AsyncGenerator[None, None]:
        """See MetadataStore."""
        return self._store.watch(path)

    async def session(self) -> Session:
        """See MetadataStore."""
        return await self._store.session()
