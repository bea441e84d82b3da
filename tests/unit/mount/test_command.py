"""offloaderd mount: its arguments, and what it shows."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from offloaderd.bookkeeper.metadata import instance_path
from offloaderd.capture import storage
from offloaderd.capture.records import Capture, Key, Kind, cursor_value
from offloaderd.cli.offloaderd import mount
from offloaderd.cli.offloaderd.__main__ import cli
from offloaderd.core.errors import Denied
from offloaderd.core.model import Position
from offloaderd.format.head import HeadSegment, TopicHead, encode_head
from offloaderd.ledgers.pulsar.cursors import Cursor
from offloaderd.mount.cluster import TargetCluster
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.objects.keys import SegmentKeys, head, segment_metadata
from offloaderd.testing.faults import Faults, FaultyMetadata
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.upkeep.stored import Site
from tests.golden.test_worked_examples import golden
from tests.unit.format import builders
from tests.unit.format.builders import Run
from tests.unit.mount.test_mount import UNLIMITED
from tests.unit.upkeep.site import (
    BUCKET,
    CLUSTER,
    OURS,
    PREFIX,
    TOPIC,
    Ground,
    committed,
    manifest_key,
    runs,
    segment_id,
)
from tests.virtual import LoopClock, virtually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from click.testing import Result

    from offloaderd.format.manifest import SegmentManifest
    from offloaderd.metadata.port import MetadataStore

PATTERN = f"{TOPIC.tenant}/*"
NAME = str(TOPIC)
OTHER = replace(TOPIC, local="other")
COMPACTION = replace(TOPIC, local=f"{TOPIC.local}/__compaction")
POLICIES = f"/admin/policies/{TOPIC.tenant}/{TOPIC.namespace}"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings with a directory as the bucket, and a cluster in memory."""
    path = tmp_path / "mount.toml"
    path.write_text(
        f'[daemon]\ncluster = "standalone"\n[objects]\nkind = "filesystem"\ndirectory = "{tmp_path / "bucket"}"\n'
        'prefix = "seg/"\n'
    )
    virtually(fill(tmp_path / "bucket"))
    tree = MemoryTree()
    virtually(found(tree))

    @asynccontextmanager
    async def cluster(_: object) -> AsyncIterator[TargetCluster]:
        yield TargetCluster(tree.connect(), ledgers_root="/ledgers", lists_root="/managed-ledgers")

    monkeypatch.setattr(mount, "_cluster", cluster)
    return path


def ground(directory: Path) -> Ground:
    """Return the site of a bucket in a directory."""
    made = Ground()
    made.objects = FilesystemStore(directory, LoopClock())
    return made


async def put_head(bucket: Ground, number: int, described: SegmentManifest) -> None:
    """Put the head that the commit of a segment puts."""
    one = committed(described)
    newest = HeadSegment(segment_id=segment_id(number), begin=one.begin, end=one.end, bucket=BUCKET, prefix=PREFIX)
    value = TopicHead(managed_ledger=described.managed_ledger, cluster=CLUSTER, epoch=1, newest=newest)
    await bucket.objects.put(head(PREFIX, CLUSTER, described.managed_ledger), encode_head(value), metadata=OURS)


async def fill(directory: Path) -> None:
    """Store two segments of a topic, with a gap between them, and its compacted ledger."""
    bucket = ground(directory)
    await FilesystemStore(directory, LoopClock()).create_bucket()
    await bucket.store(1, runs(3, 0, 10))
    await bucket.store(2, runs(3, 12, 5))
    await bucket.store(3, runs(4, 0, 5), topic=COMPACTION)


async def found(tree: MemoryTree) -> None:
    """Write what an empty cluster has."""
    store = tree.connect()
    await store.create(instance_path("/ledgers"), b"an instance")
    await store.create(POLICIES, json.dumps(UNLIMITED).encode())


def run(config: Path, *words: str) -> Result:
    """Run the command."""
    result = CliRunner().invoke(cli, ["mount", *words, "--config", str(config)], prog_name="offloaderd")
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def test_a_topic_with_a_gap_waits_for_a_decision(config: Path) -> None:
    """The plan shows how far it would come up, what is missing, and the option that decides."""
    result = run(config, "plan", PATTERN)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert " ".join(lines[0].split()) == "STATE TOPIC LEDGERS ENTRIES PAYLOAD BEGIN END LEFT OUT SUBSCRIPTIONS"
    assert lines[1].split()[:4] == ["blocked", NAME, "1", "10"]
    assert lines[1].split()[-4:] == ["3:0", "3:9", "5", "0"]
    assert any(one.startswith(f"BLOCKED  {NAME}: entries after 3:9 and before 3:12") for one in lines)
    assert "--at-gap skip" in result.stdout
    assert f"LATER    the policies of {TOPIC.tenant}/{TOPIC.namespace} do not name the driver" in result.stdout


@pytest.mark.parametrize(
    "pattern", [NAME, f"{TOPIC.tenant}/{TOPIC.namespace}/*", f"{TOPIC.tenant}/*", "re:.*"], ids=str
)
def test_a_topic_is_mounted_by_its_name_its_namespace_its_tenant_and_with_all(config: Path, pattern: str) -> None:
    """The bucket has topics of two tenants."""
    other = replace(TOPIC, tenant="other")
    virtually(ground(config.parent / "bucket").store(4, runs(8, 0, 5), topic=other))
    result = run(config, "plan", pattern, "--at-gap", "skip", "--json")
    found = {row["topic"] for row in json.loads(result.stdout)["topics"]}
    assert found == ({NAME, str(other)} if pattern == "re:.*" else {NAME})


@pytest.mark.parametrize("at_gap", ["skip", "stop"])
def test_what_was_decided_is_mounted_and_taken_out_again(config: Path, at_gap: str) -> None:
    """A plan writes nothing; after apply the topic is mounted, until undo."""
    planned = run(config, "plan", PATTERN, "--at-gap", at_gap)
    assert (planned.exit_code, "would mount 1 topic; nothing was written" in planned.stdout) == (0, True)
    applied = run(config, "apply", PATTERN, "--at-gap", at_gap, "--json")
    assert applied.exit_code == 0
    (topic,) = json.loads(applied.stdout)["topics"]
    assert (topic["state"], topic["entries"], topic["entries_left_out"], topic["end"]) == ("written", 10, 5, "3:9")
    again = run(config, "apply", PATTERN, "--at-gap", at_gap)
    assert (again.exit_code, "mounted 0 topics" in again.stdout) == (0, True)
    assert run(config, "undo", PATTERN).exit_code == 2, "nobody to ask"
    undone = run(config, "undo", PATTERN, "--yes", "--json")
    assert json.loads(undone.stdout)["topics"] == [{"topic": NAME, "ledgers": 1, "why": None, "undone": True}]
    assert run(config, "plan", PATTERN, "--at-gap", at_gap).stdout == planned.stdout


def test_a_compacted_ledger_is_no_topic_of_a_pattern(config: Path) -> None:
    """Whoever names it is told why it does not come up."""
    assert "__compaction" not in run(config, "plan", PATTERN).stdout
    named = run(config, "plan", str(COMPACTION))
    assert (named.exit_code, "what compaction has made of another topic" in named.stdout) == (1, True)


def test_ids_are_raised_before_any_topic_is_chosen(config: Path) -> None:
    """Above every ledger of the bucket, once; the mount that follows takes the same ids."""
    first = run(config, "raise-ids", "--json")
    assert json.loads(first.stdout) == {"greatest_ledger_id": 4, "first_new_ledger_id": 1 << 32, "raised": True}
    again = run(config, "raise-ids")
    assert again.stdout == (
        "the ids of new ledgers are raised already: they begin at 4294967296, and the greatest in the bucket is 4\n"
    )


def test_a_refusal_of_the_clusters_zookeeper_names_the_nodes_of_a_mount(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon's rights below metadata.root are of no use here; a refusal of the bucket is told as it is."""

    @asynccontextmanager
    async def cluster(*_: object) -> AsyncIterator[MetadataStore]:
        yield FaultyMetadata(MemoryTree().connect(), faults)

    monkeypatch.undo()
    monkeypatch.setattr(mount, "ZooKeeperStore", cluster)
    monkeypatch.setenv("OFFLOADERD__BOOKKEEPER__SERVERS", "127.0.0.1:1")
    faults = Faults()
    faults.fail("get", Denied("read /ledgers: no", hint="give the user all rights below metadata.root"), times=-1)
    refused = run(config, "plan", PATTERN)
    assert refused.exit_code == 7
    assert "metadata.root" not in refused.stderr
    assert "read everything below /ledgers, /managed-ledgers and /admin" in refused.stderr
    faults.heal()
    faults.fail("get", Denied("GET refused", hint="s3:GetObject"), times=-1)
    assert "hint: s3:GetObject" in run(config, "plan", PATTERN).stderr


@pytest.mark.parametrize(
    "words", [("plan",), ("plan", "a//b"), ("plan", "nobody/*"), ("apply", PATTERN, "--at-gap", "jump")]
)
def test_mistakes_are_exit_code_2(config: Path, words: tuple[str, ...]) -> None:
    """No topic, no pattern, one that matches nothing, a decision that is none."""
    assert run(config, *words).exit_code == 2


def test_a_capture_of_the_bucket_is_used_unless_another_is_named(config: Path, tmp_path: Path) -> None:
    """Its time is told, since what was acknowledged later is delivered again; a damaged one is named."""
    site = Site(cluster="standalone", bucket="pulsar-offload", prefix="seg/")
    records: dict[Key, object] = {
        (Kind.SUBSCRIPTION, NAME, "s"): cursor_value(Cursor(mark_delete=Position(3, 4))),
        (Kind.SUBSCRIPTION, NAME, "pulsar.repl.eu"): cursor_value(Cursor(mark_delete=Position(3, 4))),
    }
    capture = Capture(cluster="standalone", deployment_id="", taken_ms=1_700_000_000_000, records=records)
    bucket = FilesystemStore(tmp_path / "bucket", LoopClock())
    stored = virtually(storage.write(bucket, site, capture))
    assert "no capture:" in run(config, "plan", PATTERN, "--at-gap", "skip", "--capture", "none").stdout
    planned = run(config, "plan", PATTERN, "--at-gap", "skip").stdout
    assert "capture of 2023-11-14" in planned
    assert f"left out {NAME}: subscription pulsar.repl.eu" in planned
    applied = json.loads(run(config, "apply", PATTERN, "--at-gap", "skip", "--capture", stored.name, "--json").stdout)
    assert (applied["captured_ms"], applied["topics"][0]["subscriptions"]) == (1_700_000_000_000, 1)
    assert run(config, "plan", PATTERN, "--capture", "20200101T000000Z-00000000").exit_code != 0
    assert run(config, "schemas", PATTERN).exit_code == 2, "no admin API"
    virtually(bucket.put(stored.key, b"damaged"))
    result = run(config, "plan", PATTERN)
    assert (result.exit_code != 0, "--capture" in result.stderr) == (True, True)


def planned(config: Path, *words: str) -> dict[str, dict[str, Any]]:
    """Plan the mount of everything; returns what is said of each topic, by its local name."""
    found = json.loads(run(config, "plan", PATTERN, "--json", *words).stdout)
    return {one["topic"].rpartition("/")[2]: one for one in found["topics"]}


def test_topics_of_another_cluster_in_the_bucket_are_not_mounted(config: Path, tmp_path: Path) -> None:
    """Two deployments may share a bucket and a prefix: each has the topics of its own cluster."""
    virtually(ground(tmp_path / "bucket").store(4, runs(8, 0, 5), topic=OTHER, cluster="other"))
    assert list(planned(config)) == [TOPIC.local]
    config.write_text(config.read_text().replace("standalone", "other"))
    assert [(name, one["state"]) for name, one in planned(config).items()] == [(OTHER.local, "ready")]


def test_two_deployments_that_count_their_ledgers_alike_block_their_topics_alone(config: Path, tmp_path: Path) -> None:
    """Nothing shows whose entries they are: of such a ledger nothing is mounted."""
    bucket = ground(tmp_path / "bucket")
    virtually(bucket.store(4, runs(8, 0, 5), topic=OTHER))
    virtually(bucket.store(5, [Run(8, 0, [b"another"] * 5)], topic=OTHER))
    virtually(bucket.store(6, runs(9, 0, 5), topic=replace(OTHER, local="third")))
    found = planned(config)
    assert [found[name]["state"] for name in (OTHER.local, "third")] == ["blocked", "ready"]
    assert "nothing shows which of them was committed" in " ".join(found[OTHER.local]["why"])
    assert planned(config, "--at-gap", "skip")[OTHER.local]["state"] == "blocked", "there is nothing else of it"


@pytest.mark.parametrize(("number", "entries"), [(5, 3), (6, 6)])
def test_a_damaged_manifest_is_named_and_waits_for_a_decision(
    config: Path, tmp_path: Path, number: int, entries: int
) -> None:
    """It leaves a gap, in the middle and at the end; what is before it can be mounted."""
    bucket = ground(tmp_path / "bucket")
    for one, first in ((4, 0), (5, 3), (6, 6)):
        virtually(put_head(bucket, one, virtually(bucket.store(one, runs(8, first, 3), topic=OTHER))))
    assert planned(config)[OTHER.local]["entries"] == 9
    virtually(bucket.objects.put(manifest_key(number), b"damaged"))
    refused = planned(config)[OTHER.local]
    assert (refused["state"], "--at-gap" in refused["why"][-1]) == ("blocked", True)
    assert str(segment_id(number)) in run(config, "plan", PATTERN).stdout
    stopped = planned(config, "--at-gap", "stop")[OTHER.local]
    assert (stopped["state"], stopped["entries"]) == ("ready", entries)


def test_the_first_manifests_are_mounted(config: Path, tmp_path: Path) -> None:
    """As version 1 wrote them: of a topic whose first entries retention has deleted, the ledgers that are whole."""
    bucket, found = ground(tmp_path / "bucket"), builders.small_segment(preamble=True)
    keys, labels = SegmentKeys("seg/", found.manifest.segment_id), segment_metadata("standalone")
    for key, data in ((keys.data, found.data), (keys.index, found.index), (keys.manifest, golden("manifest-1"))):
        virtually(bucket.objects.put(key, data, metadata=labels))
    one = planned(config, "--at-gap", "skip")[TOPIC.local]
    assert (one["state"], one["ledgers"], one["entries"], one["end"]) == ("ready", 2, 12, "9:1")
