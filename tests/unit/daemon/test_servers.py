"""Where ZooKeeper is, as Pulsar writes it and as we do; what is no ZooKeeper is told by its name."""

from __future__ import annotations

import pytest

from offloaderd.daemon.settings import check

BUCKET = {"OFFLOADERD__OBJECTS__BUCKET": "pulsar"}
FIELDS = {"metadata": "OFFLOADERD__METADATA__SERVERS", "bookkeeper": "OFFLOADERD__BOOKKEEPER__SERVERS"}


@pytest.mark.parametrize("section", FIELDS)
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("one:2181", "one:2181"),
        ("one:2181,two:2182", "one:2181,two:2182"),
        ("zk:2181", "zk:2181"),
        ("memory:2181,zk:2181/pulsar", "memory:2181,zk:2181/pulsar"),
        ("zk:zk:2181", "zk:2181"),
        ("zk:one:2181,two:2182", "one:2181,two:2182"),
        ("zk:one:2181/pulsar/a", "one:2181/pulsar/a"),
        ("one:2181,two:2181/pulsar", "one:2181,two:2181/pulsar"),
    ],
)
def test_servers_may_be_written_as_pulsar_does(section: str, written: str, meant: str) -> None:
    """The form of metadataStoreUrl, with the node that all others are below."""
    settings = check(None, BUCKET | {FIELDS[section]: written}).settings
    assert settings is not None
    assert getattr(settings, section).servers == meant


@pytest.mark.parametrize("section", FIELDS)
@pytest.mark.parametrize("written", ["oxia://one:6648/default", "rocksdb:data/metadata", "etcd:http://one:2379"])
def test_what_is_no_zookeeper_is_told_by_its_name(section: str, written: str) -> None:
    """Not as a wrong form of what it never was; the page has the way out."""
    (mistake,) = check(None, BUCKET | {FIELDS[section]: written}).mistakes
    assert f"{written.partition(':')[0]} as Pulsar's metadata store is not supported, only ZooKeeper" in mistake
    assert "docs/quickstart.md" in mistake


def test_a_wrong_form_is_a_mistake() -> None:
    """A port has to be there, and nothing else in the place of a host."""
    for written in ("one", "http://one:2181", "one:2181/", "zk:", "one:2181/a,two:2181"):
        assert len(check(None, BUCKET | {FIELDS["metadata"]: written}).mistakes) == 1
