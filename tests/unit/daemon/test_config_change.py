"""What is between two settings: every difference with what becomes of it, and what a running daemon makes of both."""

from __future__ import annotations

import pytest

from offloaderd.core.errors import InvalidConfig
from offloaderd.daemon.reload import LIVE, Change, changes, followed
from offloaderd.daemon.settings import Settings, check
from offloaderd.daemon.settings.sections import all_settings


def settings(**values: object) -> Settings:
    """Read settings of a bucket and these, as `section__field`."""
    environ = {f"OFFLOADERD__{key.upper()}": str(value) for key, value in values.items()}
    found = check(None, {"OFFLOADERD__OBJECTS__BUCKET": "offload", **environ}).settings
    assert found is not None
    return found


def test_what_can_be_followed_exists_and_is_neither_identity_nor_place() -> None:
    """A renamed setting leaves the list with its name; who a daemon is and where its stores are is fixed."""
    assert {one.key for one in all_settings()} >= LIVE
    fixed = ("daemon.", "metadata.", "objects.", "ledgers.", "http.", "spill.")
    assert not [key for key in LIVE if key.startswith(fixed)]
    assert not LIVE & {"grpc.host", "grpc.port", "tls.cert_file", "offload.block_bytes", "offload.part_bytes"}


def test_each_difference_is_told_as_it_is_written_and_whether_it_needs_a_restart() -> None:
    """In the order of the settings file, sizes with their unit."""
    old = settings()
    new = settings(memory__buffer_bytes="64MiB", grpc__port=7777, log__level="debug")
    assert changes(old, new) == (
        Change("grpc.port", "7650", "7777"),
        Change("memory.buffer_bytes", '"256MiB"', '"64MiB"'),
        Change("log.level", '"info"', '"debug"'),
    )
    assert [one.needs_restart for one in changes(old, new)] == [True, False, False]
    assert changes(old, old) == ()


def test_a_secret_that_changed_is_told_without_a_letter_of_it() -> None:
    """Neither the old nor the new one."""
    old, new = (settings(objects__access_key="k", objects__secret_key=secret) for secret in ("canary-1", "canary-2"))
    (found,) = changes(old, new)
    assert found == Change("objects.secret_key", "********", "********")
    assert found.needs_restart


def test_what_a_daemon_follows_is_new_and_all_else_as_it_was() -> None:
    """Also which values somebody wrote down, by which policies are merged."""
    merged = followed(
        settings(offload__part_bytes="6MiB"),
        settings(offload__part_bytes="7MiB", offload__segment_bytes_max="20MiB", offload__segment_age_max_s=600),
    )
    assert (merged.offload.part_bytes, merged.offload.segment_bytes_max) == (6 << 20, 20 << 20)
    assert merged.offload.model_fields_set == {"part_bytes", "segment_bytes_max", "segment_age_max_s"}


def test_new_values_that_do_not_go_with_old_ones_are_refused() -> None:
    """Smaller parts need a restart, less memory for them does not: together they are right, half of it is not."""
    old, new = settings(), settings(offload__part_bytes="5MiB", memory__upload_bytes="15MiB")
    with pytest.raises(InvalidConfig, match=r"needs a restart.*\n.*memory\.upload_bytes") as caught:
        followed(old, new)
    assert "restart the daemon" in caught.value.hint


def test_levels_of_modules_are_checked_like_any_setting() -> None:
    """A level that is none, and what would write secrets."""
    for line, words in (("read loud", "no level"), ("botocore debug", "signed headers"), ("kazoo.client info", "")):
        report = check(None, {"OFFLOADERD__OBJECTS__BUCKET": "offload", "OFFLOADERD__LOG__LEVELS": line})
        assert (words in report.mistakes[0]) if words else report.settings is not None
