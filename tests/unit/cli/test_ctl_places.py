"""offloadctl places: what it asks, what it shows, its documents."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.cli.offloadctl.places import Wait
from offloaderd.cli.progress import Bars
from offloaderd.core.errors import Transient
from offloaderd.core.model import TopicName
from offloaderd.protocol.v1 import places_pb2, places_pb2_grpc
from tests.unit.cli.conftest import Ctl
from tests.unit.cli.fake_daemon import serving
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "persistent://public/default/orders"
MIB = 1 << 20
Place = places_pb2.ListPlacesResponse.Place


class Places(places_pb2_grpc.PlacesServiceServicer):
    """Answers with what it is told."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.copies = 2
        self.answers: list[places_pb2.ListPlacesResponse] = []
        self.listed = places_pb2.ListPlacesResponse(
            places=[
                Place(
                    service="objects", kind="s3", bucket="b", prefix="seg/", role="first",
                    segments=3, segment_bytes=5 * MIB, segment_entries=1200, both=2,
                ),
                Place(
                    service="archive", kind="azure", bucket="eu", prefix="topics/", role="mirror",
                    copies=2, copy_bytes=4 * MIB, copy_entries=1000, both=2,
                ),
                Place(bucket="gone"),
            ],
            uncopied_segments=1,
            uncopied_bytes=MIB,
            open_place="b/seg/",
        )  # fmt: skip
        self.last = places_pb2.SwitchProgress(
            first="eu/topics/", mirror="b/seg/", policy_changed=True, segments_total=2, segments=2, bytes_total=4 * MIB,
            waiting=1, done=True,
        )  # fmt: skip

    def ListPlaces(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802 - as gRPC types and names it
        """Answer with the places; the copies get on from one answer to the next."""
        self.requests.append(request)
        if self.answers:
            self.listed = self.answers.pop(0)
        return self.listed

    def SetMirror(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802
        """Answer that it was another one."""
        self.requests.append(request)
        return places_pb2.SetMirrorResponse(before="eu/topics/", changed=True)

    def SwitchPlaces(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802
        """Yield progress, and the end."""
        self.requests.append(request)
        yield places_pb2.SwitchProgress(segments=1, segments_total=2)
        yield self.last

    def DeleteCopies(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802
        """Yield the end."""
        self.requests.append(request)
        copies = 0 if request.dry_run else self.copies
        yield places_pb2.DeleteCopiesProgress(
            places=["b/seg/"], copies=copies, copies_total=2, bytes_total=4 * MIB, done=True
        )


@pytest.fixture
def daemon() -> Places:
    """What the daemon answers."""
    return Places()


@pytest.fixture
def ctl(daemon: Places) -> Iterator[Ctl]:
    """Offloadctl, talking to it."""
    with serving(partial(places_pb2_grpc.add_PlacesServiceServicer_to_server, daemon)) as address:
        yield Ctl(address)


def test_the_places_are_listed(ctl: Ctl, daemon: Places) -> None:
    """Service, kind and role of each; one that only segments name is in no settings."""
    lines = ctl("places", "list").out.splitlines()
    assert lines[0].split() == ["PLACE", "SERVICE", "KIND", "ROLE"]
    assert [line.split()[:4] for line in lines[1:3]] == [
        ["b/seg/", "objects", "s3", "first"],
        ["eu/topics/", "archive", "azure", "mirror"],
    ]
    assert "in no settings" in lines[3]
    assert daemon.requests[-1].topic == ""


def test_what_each_place_has_of_a_topic_is_listed(ctl: Ctl, daemon: Places) -> None:
    """Segments, bytes and entries, copies, those in both, what lacks its copy, and where the open segment is."""
    answer = ctl("places", "list", "orders")
    assert "5.0 MiB" in answer.out.splitlines()[1]
    assert "1,200" in answer.out.splitlines()[1]
    assert "1 segment (1.0 MiB) have no copy in the mirror yet" in answer.err
    assert "a segment is being written in b/seg/" in answer.err
    document = ctl("places", "list", "orders", "--json").json
    assert (document["topic"], document["uncopied_segments"], len(document["places"])) == (TOPIC, 1, 3)
    assert daemon.requests[-1].topic == TOPIC


def test_places_are_switched(ctl: Ctl, daemon: Places) -> None:
    """What was exchanged, and what has to be done once more."""
    answer = ctl("places", "switch", "orders", "--to", "eu/topics/")
    assert answer.code == 0
    assert answer.out.splitlines() == [
        f"{TOPIC}: first place eu/topics/, mirror b/seg/ (policy: exchanged)",
        "exchanged: 2 segments, 4.0 MiB, stored in both places",
        "1 segment not in both places yet: repeat the command when they are copied",
    ]
    assert (daemon.requests[-1].to, daemon.requests[-1].dry_run) == ("eu/topics/", False)
    assert ctl("places", "switch", "orders", "--json").json["waiting"] == 1


def test_a_dry_run_says_what_would_be(ctl: Ctl, daemon: Places) -> None:
    """The daemon is asked for it, and nothing sounds as if it were done."""
    daemon.last.segments = 0
    answer = ctl("places", "switch", "orders", "--dry-run")
    assert "would be exchanged: 2 segments" in answer.out
    assert daemon.requests[-1].dry_run


def asked(daemon: Places) -> list[str]:
    """Return what was asked, in order."""
    return [type(one).__name__.removesuffix("Request") for one in daemon.requests]


def test_a_topic_is_moved(ctl: Ctl, daemon: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror is named, the copies of before are waited for, later ones not, and then the places are exchanged."""
    monkeypatch.setattr("offloaderd.cli.offloadctl.places.POLL_S", 0.0)
    now: dict[str, Any] = {"places": daemon.listed.places, "now_ms": 1000}
    daemon.answers = [
        daemon.listed,
        places_pb2.ListPlacesResponse(**now, uncopied_segments=3, uncopied_since_ms=10),
        places_pb2.ListPlacesResponse(**now, uncopied_segments=2, uncopied_since_ms=20),
        places_pb2.ListPlacesResponse(**now, uncopied_segments=1, uncopied_since_ms=1001),
    ]
    answer = ctl("places", "move", "orders", "--to", "us/")
    assert asked(daemon) == ["ListPlaces", "SetMirror", *["ListPlaces"] * 3, "SwitchPlaces"]
    assert (daemon.requests[1].mirror, daemon.requests[-1].to) == ("us/", "us/")
    assert answer.out.startswith(f"{TOPIC}: mirror us/ (set instead of eu/topics/)\n")
    assert "exchanged: 2 segments" in answer.out
    assert "copying" in answer.err


def test_a_move_that_was_interrupted_goes_on_where_it_was(ctl: Ctl, daemon: Places) -> None:
    """A mirror that is named already is not named again; after the exchange nothing is waited for."""
    daemon.listed.uncopied_segments = 0
    assert ctl("places", "move", "orders", "--to", "eu/topics/", "--json").json["mirror_changed"] is False
    assert asked(daemon) == ["ListPlaces", "ListPlaces", "SwitchPlaces"]
    daemon.requests.clear()
    assert ctl("places", "move", "orders", "--to", "b/seg/").code == 0
    assert asked(daemon) == ["ListPlaces", "SwitchPlaces"]


def test_a_bucket_alone_is_its_place_without_a_prefix(ctl: Ctl, daemon: Places) -> None:
    """Written without the slash of the list it is the same place."""
    daemon.listed = places_pb2.ListPlacesResponse(
        places=[Place(bucket="eu", role="first", segments=1), Place(bucket="b", prefix="seg/", segments=3)]
    )
    assert ctl("places", "move", "orders", "--to", "eu").code == 0
    assert (daemon.requests[1].mirror, daemon.requests[-1].to) == ("b/seg/", "eu/")


def test_a_dry_run_of_a_move_changes_nothing(ctl: Ctl, daemon: Places) -> None:
    """It says what would be copied; of a move that has begun, what would be exchanged."""
    answer = ctl("places", "move", "orders", "--to", "us/", "--dry-run")
    assert answer.out.splitlines() == [
        f"{TOPIC}: mirror us/ (would be set instead of eu/topics/)",
        "would be copied, and then exchanged: 3 segments, 5.0 MiB",
    ]
    assert daemon.requests[-1].dry_run
    assert "would be exchanged" in ctl("places", "move", "orders", "--to", "eu/topics/", "--dry-run").out
    assert daemon.requests[-1].dry_run


def test_the_old_copies_are_deleted_once_nothing_is_read_there(
    ctl: Ctl, daemon: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the open segment is waited for; then the topic has no mirror, and the copies go."""
    monkeypatch.setattr("offloaderd.cli.offloadctl.places.POLL_S", 0.0)
    new = Place(service="archive", kind="azure", bucket="eu", prefix="topics/", role="first", segments=2)
    old = Place(bucket="b", prefix="seg/", role="mirror", segments=1, broker_segments=1, copies=2)
    busy = Place(bucket="b", prefix="seg/", role="mirror", segments=2, broker_segments=1)
    daemon.answers = [
        places_pb2.ListPlacesResponse(places=[new, busy]),
        places_pb2.ListPlacesResponse(places=[new, busy]),
        places_pb2.ListPlacesResponse(places=[new, old], open_place="b/seg/"),
        places_pb2.ListPlacesResponse(places=[new, old], open_place="eu/topics/"),
    ]
    answer = ctl("places", "move", "orders", "--to", "eu/topics/", "--delete-old", "--yes")
    looks = ["ListPlaces", "SwitchPlaces"]
    assert asked(daemon) == ["SetMirror", *looks * 3, "ListPlaces", "SetMirror", "DeleteCopies"]
    assert (daemon.requests[-2].mirror, daemon.requests[-2].dry_run, daemon.requests[0].dry_run) == ("", False, True)
    assert answer.out.splitlines()[-1] == (
        f"{TOPIC}: no mirror; on the trash list: 2 copies in b/seg/, 4.0 MiB, deleted after retention.reader_grace_s"
    )


def test_a_deletion_that_was_interrupted_goes_on(ctl: Ctl, daemon: Places) -> None:
    """The topic has no mirror any more: nothing is exchanged, and what is left is deleted."""
    daemon.listed = places_pb2.ListPlacesResponse(places=[Place(bucket="eu", prefix="topics/", role="first")])
    answer = ctl("places", "move", "orders", "--to", "eu/topics/", "--delete-old", "--yes", "--json")
    assert answer.json["copies_deleted"] == 2
    assert asked(daemon) == ["SetMirror", "ListPlaces", "ListPlaces", "SetMirror", "DeleteCopies"]
    daemon.copies = 0
    answer = ctl("places", "move", "orders", "--to", "eu/topics/", "--delete-old", "--yes")
    assert answer.out.splitlines()[-1] == (
        f"{TOPIC}: no mirror; no copies elsewhere, but what was put on the trash list before"
    )


def test_a_deletion_is_asked_for(ctl: Ctl, daemon: Places) -> None:
    """Without a terminal and --yes nothing is done; a dry run asks nobody and deletes nothing."""
    answer = ctl("places", "move", "orders", "--to", "eu/topics/", "--delete-old")
    assert (answer.code, daemon.requests) == (2, [])
    assert "--yes" in answer.err
    answer = ctl("places", "move", "orders", "--to", "eu/topics/", "--delete-old", "--dry-run")
    assert answer.out.splitlines()[-1].startswith("then the topic would have no mirror")
    assert all(one.dry_run for one in daemon.requests if not isinstance(one, places_pb2.ListPlacesRequest))


def test_what_an_earlier_change_of_the_policy_left_behind_is_moved(ctl: Ctl, daemon: Places) -> None:
    """New segments are in the new place already: the old place becomes the mirror, so that the rest is copied."""
    daemon.listed = places_pb2.ListPlacesResponse(
        places=[
            Place(bucket="eu", prefix="topics/", role="first", segments=1),
            Place(bucket="b", prefix="seg/", segments=3, broker_segments=1),
            Place(bucket="theirs", segments=2, broker_segments=2),
        ]
    )
    answer = ctl("places", "move", "orders", "--to", "eu/topics/")
    assert asked(daemon) == ["ListPlaces", "SetMirror", "ListPlaces", "SwitchPlaces"]
    assert (daemon.requests[1].mirror, daemon.requests[-1].to) == ("b/seg/", "eu/topics/")
    assert answer.out.startswith(f"{TOPIC}: mirror b/seg/ (set")


def failing(since_ms: int = 1000) -> places_pb2.ListPlacesResponse:
    """Return what the daemon says while the bucket of the copies does not answer."""
    return places_pb2.ListPlacesResponse(
        places=[Place(bucket="b", role="first", segments=2)],
        uncopied_segments=2,
        uncopied_bytes=MIB,
        uncopied_since_ms=10,
        now_ms=61_000,
        copy_failure="bucket 'us' does not answer",
        copy_failing_since_ms=since_ms,
    )


def test_a_move_to_a_bucket_that_does_not_answer_reports_it_and_ends(
    ctl: Ctl, daemon: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is waited for at once, the failure as soon as the daemon has one, once; an error after so long."""
    monkeypatch.setattr("offloaderd.cli.offloadctl.places.POLL_S", 0.0)
    monkeypatch.setattr("offloaderd.cli.offloadctl.places.FAILING_S", 0.0)
    before = failing()
    before.copy_failure, before.copy_failing_since_ms = "", 0
    daemon.answers = [before, before, failing(since_ms=61_000), failing(since_ms=61_000), failing()]
    answer = ctl("places", "move", "orders", "--to", "us/")
    assert answer.code == 1
    waits, failure, error, hint = answer.err.splitlines()
    assert waits == "copying 0.0 %: 2 segments (1.0 MiB) to be copied to us/"
    assert failure == "copies FAIL since 1970-01-01 00:01:01 UTC: bucket 'us' does not answer"
    assert f"still 2 segments (1.0 MiB) to be copied to us/ of {TOPIC}; copies FAIL since 1970-01-01 00:00:01" in error
    assert "goes on where it was" in hint
    assert "copies FAIL since" in ctl("places", "list", "orders").err


@pytest.mark.parametrize(
    ("limit_s", "waited_s", "since_ms", "ends"),
    [
        (5.0, 4.0, 1, False),
        (5.0, 6.0, 0, True),
        (None, 6000.0, 0, False),
        (None, 601.0, 1, True),
        (None, 599.0, 1, False),
    ],
)
async def test_how_long_copies_are_waited_for(
    limit_s: float | None, waited_s: float, since_ms: int, ends: bool
) -> None:
    """For the time that was allowed; without one as long as they do not fail for ten minutes of the wait."""
    clock = LoopClock()
    wait, found = Wait(TopicName.parse("orders"), limit_s, Bars(hidden=True), clock), failing(since_ms)
    found.now_ms = 10_000_000
    await clock.sleep(waited_s)
    with pytest.raises(Transient, match="still x") if ends else nullcontext():
        await wait.pause(found, "x")
