"""Adapters that fail on demand, before or after the real one has acted.

A fault that comes after the act is a lost answer: the caller sees OutcomeUnknown, the store has done it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeVar

from offloaderd.core.errors import OutcomeUnknown
from offloaderd.metadata.port import MetadataStore, Session, Step, Versioned
from offloaderd.objects.port import Bytes, ObjectInfo, PartInfo, Pieces, SegmentStore, UploadInfo

T = TypeVar("T")
When = Literal["before", "after"]
Plan = Callable[[str, str, When], Exception | None]
"""Asked with (operation, key or path, before or after the act); returns what to raise, or None."""


class Faults:
    """A plan that fails the named operations a number of times; counts what it was asked."""

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
        """Forget all that was planned."""
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

    async def _do(self, operation: str, key: str, act: Callable[[], Awaitable[T]]) -> T:
        if error := self._plan(operation, key, "before"):
            raise error
        result = await act()
        if error := self._plan(operation, key, "after"):
            raise error
        return result


class FaultyStore(_Faulty):
    """A SegmentStore with faults; listings never fail half way."""

    def __init__(self, store: SegmentStore, plan: Plan) -> None:
        super().__init__(plan)
        self._store = store

    def at(self, bucket: str) -> "FaultyStore":
        """See SegmentStore; the faults are those of all buckets."""
        there = self._store.at(bucket)
        return self if there is self._store else FaultyStore(there, self._plan)

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """See ObjectReader."""
        return await self._do("get", key, lambda: self._store.get(key, first, length))

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """See ObjectReader."""
        return await self._do("get", key, lambda: self._store.get_pieces(key, first, lengths))

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectReader."""
        return await self._do("head", key, lambda: self._store.head(key))

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """See ObjectReader."""
        if error := self._plan("list", prefix, "before"):
            raise error
        async for info in self._store.list(prefix):
            yield info

    async def put(
        self, key: str, data: Bytes, *, metadata: Mapping[str, str] | None = None, if_etag: str | None = None
    ) -> ObjectInfo:
        """See ObjectStore."""
        return await self._do("put", key, lambda: self._store.put(key, data, metadata=metadata, if_etag=if_etag))

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore."""
        await self._do("delete", " ".join(keys), lambda: self._store.delete(keys))

    async def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:
        """See MultipartStore."""
        return await self._do("create_upload", key, lambda: self._store.create_upload(key, metadata=metadata))

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """See MultipartStore."""
        return await self._do("upload_part", key, lambda: self._store.upload_part(key, upload_id, part_number, pieces))

    async def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """See MultipartStore."""
        return await self._do("list_parts", key, lambda: self._store.list_parts(key, upload_id))

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """See MultipartStore."""
        return await self._do("complete_upload", key, lambda: self._store.complete_upload(key, upload_id, parts))

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """See MultipartStore."""
        await self._do("abort_upload", key, lambda: self._store.abort_upload(key, upload_id))

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

    async def get(self, path: str) -> Versioned:
        """See MetadataStore."""
        return await self._do("get", path, lambda: self._store.get(path))

    async def children(self, path: str) -> Sequence[str]:
        """See MetadataStore."""
        return await self._do("children", path, lambda: self._store.children(path))

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        """See MetadataStore."""
        await self._do("create", path, lambda: self._store.create(path, value, ephemeral=ephemeral))

    async def replace(self, path: str, value: bytes, version: int) -> int:
        """See MetadataStore."""
        return await self._do("replace", path, lambda: self._store.replace(path, value, version))

    async def delete(self, path: str, version: int | None = None) -> None:
        """See MetadataStore."""
        await self._do("delete", path, lambda: self._store.delete(path, version))

    async def transact(self, steps: Sequence[Step]) -> None:
        """See MetadataStore; the key of the fault is the paths of all steps."""
        await self._do("transact", " ".join(step.path for step in steps), lambda: self._store.transact(steps))

    def watch(self, path: str) -> AsyncGenerator[None, None]:
        """See MetadataStore."""
        return self._store.watch(path)

    async def session(self) -> Session:
        """See MetadataStore."""
        return await self._store.session()
