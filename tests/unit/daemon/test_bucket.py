"""The checks of the bucket, on stores that lie in one way each; whatever they find, they leave nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from offloaderd.core.errors import Denied, Transient
from offloaderd.daemon.doctor.bucket import bucket_checks
from offloaderd.daemon.doctor.examination import examine
from offloaderd.daemon.doctor.finding import Case, Verdict
from offloaderd.daemon.settings import Settings
from offloaderd.objects import keys, opening
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.objects.s3.errors import ANSWERS
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.objects.stored_as import PLAIN, StoredAs
from offloaderd.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from pathlib import Path

    from offloaderd.core.errors import OffloaderError
    from offloaderd.daemon.doctor.finding import CheckResult
    from offloaderd.objects.port import Bytes, ObjectInfo, PartInfo, Pieces, UploadInfo

ALL = (
    "bucket",
    "bucket write",
    "bucket read",
    "bucket list",
    "bucket multipart",
    "bucket abort",
    "bucket delete",
)


class LosesMetadata(FilesystemStore):
    """A proxy in front drops headers."""

    async def put(
        self,
        key: str,
        data: Bytes | Pieces,
        *,
        metadata: Mapping[str, str] | None = None,
        if_etag: str | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> ObjectInfo:
        """Store without the metadata."""
        return await super().put(key, data)


class IgnoresRanges(FilesystemStore):
    """A cache in front always sends the whole."""

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """Return everything."""
        return await super().get(key)


class ListsLate(FilesystemStore):
    """An eventually consistent listing."""

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield nothing yet."""
        async for info in super().list("nothing-begins-like-this"):
            yield info


class SwapsParts(FilesystemStore):
    """ListParts with foreign ETags."""

    async def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """Return the parts without the last."""
        return (await super().list_parts(key, upload_id))[:-1]


class HidesUploads(FilesystemStore):
    """ListMultipartUploads is not implemented."""

    async def list_uploads(self, prefix: str = "") -> AsyncGenerator[UploadInfo, None]:
        """Yield none."""
        async for upload in super().list_uploads("nothing-begins-like-this"):
            yield upload


class ListsUploadsByKey(FilesystemStore):
    """ListMultipartUploads takes a prefix for a whole key, as MinIO does."""

    async def list_uploads(self, prefix: str = "") -> AsyncGenerator[UploadInfo, None]:
        """Yield those of one key."""
        async for upload in super().list_uploads(prefix):
            if upload.key == prefix:
                yield upload


class KeepsEverything(FilesystemStore):
    """A bucket under a legal hold that says yes to every delete."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Do nothing."""


def denied(operation: str) -> OffloaderError:
    """Return what the adapter raises where a right is missing."""
    kind, hint = ANSWERS.verdict(operation, "AccessDenied", 403)
    return kind(f"{operation}: AccessDenied", hint=hint)


class MayNotUpload(FilesystemStore):
    """Credentials without the right to complete."""

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """Refuse."""
        raise denied("CompleteMultipartUpload")


class MayNotWrite(FilesystemStore):
    """Credentials that may only read."""

    async def put(
        self,
        key: str,
        data: Bytes | Pieces,
        *,
        metadata: Mapping[str, str] | None = None,
        if_etag: str | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> ObjectInfo:
        """Refuse."""
        raise denied("PutObject")

    async def create_upload(
        self,
        key: str,
        *,
        metadata: Mapping[str, str] | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> str:
        """Refuse."""
        raise denied("CreateMultipartUpload")


class Expires(FilesystemStore):
    """Credentials that run out meanwhile."""

    async def put(
        self,
        key: str,
        data: Bytes | Pieces,
        *,
        metadata: Mapping[str, str] | None = None,
        if_etag: str | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> ObjectInfo:
        """Refuse."""
        raise Denied("PutObject: ExpiredToken", hint="refresh them")


class GoesAway(FilesystemStore):
    """The store is gone when the probe is to be deleted."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Refuse."""
        raise Transient("DeleteObjects: no connection", hint="bring it back")


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """An examination of a directory."""
    objects = ObjectsSettings(kind="filesystem", directory=str(tmp_path), prefix="team-a/")
    return Case(Settings(objects=objects), FakeClock())


async def results(case: Case) -> list[CheckResult]:
    """Run the group."""
    return [result async for result in bucket_checks(case)]


def left(root: Path) -> list[str]:
    """What the probe left behind, apart from the store's own empty folders."""
    return [path.name for path in root.rglob("*") if path.is_file()]


async def test_a_sound_store_passes_and_stays_empty(case: Case, tmp_path: Path) -> None:
    """Every operation the daemon needs, and not a byte is left."""
    found = await results(case)
    assert [(result.name, result.verdict) for result in found] == [(name, Verdict.OK) for name in ALL]
    assert "team-a/offloaderd-doctor/" in found[1].found
    assert left(tmp_path) == []


async def test_what_gc_cannot_see_is_warned_of(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon can work with a store that lists uploads by their keys; only garbage stays for others to find."""
    monkeypatch.setattr(opening, "FilesystemStore", ListsUploadsByKey)
    found = [result for result in await results(case) if result.verdict is not Verdict.OK]
    assert [(result.name, result.verdict) for result in found] == [("bucket abort", Verdict.WARN)]
    assert "offloadctl gc" in found[0].what_to_do
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("store", "failing", "words"),
    [
        (LosesMetadata, {"bucket write"}, "x-amz-meta"),
        (IgnoresRanges, {"bucket read", "bucket multipart"}, "ignores Range"),
        (ListsLate, {"bucket list"}, "found by listing"),
        (SwapsParts, {"bucket multipart"}, "ListParts cannot be relied on"),
        (Expires, {"bucket write", "bucket read", "bucket list"}, "refresh them"),
        (HidesUploads, {"bucket abort"}, "life-cycle rule"),
        (MayNotUpload, {"bucket multipart"}, "allow s3:PutObject to"),
        (
            MayNotWrite,
            {"bucket write", "bucket read", "bucket list", "bucket multipart", "bucket abort"},
            "allow s3:PutObject to",
        ),
    ],
)
async def test_each_wrong_answer_is_distinguished(
    store: type[FilesystemStore],
    failing: set[str],
    words: str,
    case: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check that fails names it, with what to do; the others go on; everything is deleted."""
    monkeypatch.setattr(opening, "FilesystemStore", store)
    found = await results(case)
    assert {result.name for result in found if result.failed} == failing
    assert any(words in result.what_to_do for result in found if result.failed)
    assert left(tmp_path) == []


@pytest.mark.parametrize("store", [KeepsEverything, GoesAway])
async def test_what_cannot_be_deleted_is_said(
    store: type[FilesystemStore], case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody must do it by hand, and is told where."""
    monkeypatch.setattr(opening, "FilesystemStore", store)
    last = (await results(case))[-1]
    assert (last.name, last.verdict) == ("bucket delete", Verdict.FAIL)
    assert "delete team-a/offloaderd-doctor/" in last.what_to_do
    assert "by hand" in last.what_to_do


async def test_without_a_bucket_the_rest_is_skipped(case: Case, tmp_path: Path) -> None:
    """One failure with what to do, not seven."""
    tmp_path.rmdir()
    found = await results(case)
    assert [result.verdict for result in found] == [Verdict.FAIL] + [Verdict.SKIPPED] * (len(ALL) - 1)
    assert tuple(result.name for result in found) == ALL


async def test_a_client_that_goes_away_leaves_nothing_either(case: Case, tmp_path: Path) -> None:
    """The generator is closed in the middle: the probe is deleted all the same."""
    checks = bucket_checks(case)
    async for result in checks:
        if result.name == "bucket write":
            break
    assert left(tmp_path) != []
    await checks.aclose()
    assert left(tmp_path) == []


@pytest.mark.parametrize("cluster", ["pulsar", "another"])
async def test_a_daemon_that_only_reads_is_examined_without_a_write(tmp_path: Path, cluster: str) -> None:
    """It finds segments of its own cluster, or says that there are none."""
    settings = Settings.model_validate(
        {
            "daemon": {"read_only": True, "cluster": cluster},
            "objects": {"kind": "filesystem", "directory": str(tmp_path)},
        }
    )
    async with opening.bucket_store(settings.objects, FakeClock()) as store:
        key = keys.SegmentKeys("", UUID(int=7)).data
        await store.put(key, b"data", metadata=keys.segment_metadata("pulsar"))
        before = [info async for info in store.list()]
        results = [one async for one in examine(settings, FakeClock())]
        assert [info async for info in store.list()] == before
    found = {one.name: one for one in results}
    assert not {"zookeeper", "metadata", "bucket write"} & found.keys()
    assert found["bucket"].verdict is Verdict.OK
    read = found["bucket read"]
    if cluster == "pulsar":
        assert (read.verdict, key in read.found) == (Verdict.OK, True)
    else:
        assert (read.verdict, "no segment of cluster 'another'" in read.found) == (Verdict.WARN, True)
