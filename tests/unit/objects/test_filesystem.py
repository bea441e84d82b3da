"""What only the directory adapter can get wrong: names, crashes, rights, full disks."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import BucketMissing, Denied, InvalidInput, NoSpace, NotFound, Transient
from offloaderd.objects.filesystem import FilesystemStore, ObjectDirectory, escaped, translated, unescaped
from tests.virtual import LoopClock

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=16)


@given(KEYS, KEYS)
def test_names(key: str, other: str) -> None:
    """A file name is one name, never hidden, gives its key back, and belongs to no other key."""
    name = escaped(key)
    assert "/" not in name
    assert not name.startswith(".")
    assert unescaped(name) == key
    assert (name == escaped(other)) == (key == other)


@pytest.mark.parametrize("key", ["../escape", "/etc/passwd", "..", ".", ".metadata", ".uploads/x", "a/../../b", "a//b"])
async def test_traversal(tmp_path: Path, key: str) -> None:
    """No key leaves the root or meets the hidden folders: it is a name like any other."""
    root = tmp_path / "root"
    root.mkdir()
    store = FilesystemStore(root)
    await store.put(key, b"x")
    assert await store.get(key) == b"x"
    assert [info.key async for info in store.list()] == [key]
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    await store.delete([key])
    assert [path.name for path in root.iterdir() if not path.name.startswith(".")] == []


async def test_long_key(tmp_path: Path) -> None:
    """A key that has no room in a file name is refused with a hint, not with the system's error."""
    with pytest.raises(InvalidInput, match=r"objects\.prefix"):
        await FilesystemStore(tmp_path).put("ä" * 50, b"x")


@pytest.mark.parametrize("upload_id", ["../../etc", "", ".", "x" * 32, "A" * 32])
async def test_foreign_upload_ids(tmp_path: Path, upload_id: str) -> None:
    """An upload id is never used as a path."""
    store = FilesystemStore(tmp_path)
    with pytest.raises(NotFound):
        await store.upload_part("k", upload_id, 1, [b"x"])
    await store.abort_upload("k", upload_id)


async def test_data_file_is_the_object(tmp_path: Path) -> None:
    """The data file holds the object's bytes and nothing else, whatever reads it."""
    store = FilesystemStore(tmp_path)
    await store.put("p/key", b"bytes", metadata={"a": "1"})
    assert (tmp_path / "p%2Fkey").read_bytes() == b"bytes"
    upload = await store.create_upload("parts")
    parts = [await store.upload_part("parts", upload, number, [b"ab"]) for number in (1, 2)]
    await store.complete_upload("parts", upload, parts)
    assert (tmp_path / "parts").read_bytes() == b"abab"


async def test_nothing_is_left_over(tmp_path: Path) -> None:
    """Overwriting, completing, aborting and deleting leave no draft, no part and no stale metadata."""
    store = FilesystemStore(tmp_path)
    for content in (b"1", b"22", b"333"):
        await store.put("k", content, metadata={"n": str(len(content))})
    assert len(list((tmp_path / ".metadata").iterdir())) == 1
    for end in ("complete", "abort"):
        upload = await store.create_upload("k")
        part = await store.upload_part("k", upload, 1, [b"x"])
        await (store.complete_upload("k", upload, [part]) if end == "complete" else store.abort_upload("k", upload))
    await store.check()
    await store.delete(["k"])
    for folder in (".metadata", ".drafts", ".uploads"):
        assert list((tmp_path / folder).iterdir()) == []


async def test_reopened(tmp_path: Path) -> None:
    """Objects and open uploads are there after a restart."""
    store = FilesystemStore(tmp_path)
    await store.put("k", b"x", metadata={"a": "1"})
    upload = await store.create_upload("u", metadata={"b": "2"})
    first = await store.upload_part("u", upload, 1, [b"one"])
    again = FilesystemStore(tmp_path)
    assert (await again.head("k")).metadata == {"a": "1"}
    assert [found.upload_id async for found in again.list_uploads()] == [upload]
    assert list(await again.list_parts("u", upload)) == [first]
    second = await again.upload_part("u", upload, 2, [b"two"])
    await again.complete_upload("u", upload, [first, second])
    assert await again.get("u") == b"onetwo"
    assert (await again.head("u")).metadata == {"b": "2"}


@pytest.mark.parametrize("fail_at", range(1, 9))
async def test_crash_in_an_overwrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int) -> None:
    """An overwrite that stops at any step leaves the old object or the new one, with its own metadata."""
    store = FilesystemStore(tmp_path)
    await store.put("k", b"old", metadata={"v": "old"})
    steps = 0

    def step_of(real: object) -> object:
        def step(*arguments: object, **named: object) -> object:
            nonlocal steps
            steps += 1
            if steps >= fail_at:
                raise OSError(errno.EIO, "crashed")
            return real(*arguments, **named)  # type: ignore[operator]

        return step

    with monkeypatch.context() as patch:
        for target, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink")):
            patch.setattr(target, name, step_of(getattr(target, name)))
        with suppress(Transient):
            await store.put("k", b"brand new", metadata={"v": "new"})
    again = FilesystemStore(tmp_path)
    head = await again.head("k")
    assert (await again.get("k"), head.metadata) in [(b"old", {"v": "old"}), (b"brand new", {"v": "new"})]
    assert [info.key async for info in again.list()] == ["k"]


async def test_copied_tree(tmp_path: Path) -> None:
    """A copy that lost the files' times still knows ETag and metadata; a file put there by hand has none."""
    store = FilesystemStore(tmp_path / "a")
    await store.create_bucket()
    await store.put("k", b"x", metadata={"a": "1"})
    upload = await store.create_upload("u", metadata={"b": "2"})
    parts = [await store.upload_part("u", upload, number, [b"p"]) for number in (1, 2)]
    await store.complete_upload("u", upload, parts)
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    (tmp_path / "b" / "by-hand").write_bytes(b"y")
    copy = FilesystemStore(tmp_path / "b")
    for key in ("k", "u"):
        assert (await copy.head(key)).etag == (await store.head(key)).etag
        assert (await copy.head(key)).metadata == (await store.head(key)).metadata
    assert (await copy.head("by-hand")).metadata == {}
    assert [info.key async for info in copy.list()] == ["by-hand", "k", "u"]


async def test_concurrent_puts(tmp_path: Path) -> None:
    """Of puts at one time one wins, with its own metadata."""
    store = FilesystemStore(tmp_path)
    async with asyncio.TaskGroup() as group:
        for number in range(12):
            group.create_task(store.put("k", b"x" * number, metadata={"n": str(number)}))
    assert (await store.head("k")).metadata == {"n": str(len(await store.get("k")))}


async def test_missing_root(tmp_path: Path) -> None:
    """Without its root the store says so, and calls no object missing."""
    store = FilesystemStore(tmp_path / "absent")
    for attempt in (
        store.check(),
        store.get("k"),
        store.head("k"),
        store.put("k", b"x"),
        store.create_upload("k"),
        store.list_parts("k", "0" * 32),
        anext(store.list()),
        anext(store.list_uploads()),
    ):
        with pytest.raises(BucketMissing, match=r"objects\.directory"):
            await attempt
    await store.create_bucket()
    await store.check()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.EACCES, Denied),
        (errno.EROFS, Denied),
        (errno.EIO, Transient),
        (errno.ENOENT, NotFound),
    ],
)
def test_system_errors(tmp_path: Path, number: int, kind: type[Exception]) -> None:
    """What the system says becomes one of our errors."""
    with pytest.raises(kind) as caught, translated(tmp_path, "k"):
        raise OSError(number, os.strerror(number))
    assert type(caught.value) is kind


def test_failed_draft_is_removed(tmp_path: Path) -> None:
    """A disk that fills up in the middle of a write keeps nothing of it."""

    def pieces() -> object:
        yield b"x"
        raise OSError(errno.ENOSPC, "full")

    directory = ObjectDirectory(tmp_path, LoopClock())
    with pytest.raises(OSError, match="full"):
        directory.draft(pieces())  # type: ignore[arg-type]
    assert list((tmp_path / ".drafts").iterdir()) == []


async def test_a_remedy_names_the_settings_of_its_service(tmp_path: Path) -> None:
    """In every operation, not only when it is checked at the start."""
    store = FilesystemStore(tmp_path / "gone", bucket="nas", section="objects.services.nas")
    for request in (store.check(), store.put("a", b""), store.get("a")):
        with pytest.raises(BucketMissing) as caught:
            await request
        assert caught.value.hint == "create it, or correct objects.services.nas.directory"
