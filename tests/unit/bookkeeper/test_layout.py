"""Paths of ledgers in every layout, and which layout a cluster has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.bookkeeper.metadata import Layout, decode_layout, layout_path, registration_paths
from offloaderd.core.errors import CorruptData, InvalidConfig, InvalidInput
from tests.golden import bookkeeper as golden

LONG = "org.apache.bookkeeper.meta."


@pytest.mark.parametrize(
    ("layout", "ledger_id", "path"),
    [
        (Layout.HIERARCHICAL, 7, "/ledgers/00/0000/L0007"),
        (Layout.HIERARCHICAL, 2147483646, "/ledgers/21/4748/L3646"),
        (Layout.HIERARCHICAL, 2147483647, "/ledgers/000/0000/0021/4748/L3647"),
        (Layout.HIERARCHICAL, 2**63 - 1, "/ledgers/922/3372/0368/5477/L5807"),
        (Layout.LEGACY_HIERARCHICAL, 2147483647, "/ledgers/21/4748/L3647"),
        (Layout.LONG_HIERARCHICAL, 7, "/ledgers/000/0000/0000/0000/L0007"),
        (Layout.FLAT, 7, "/ledgers/L0000000007"),
    ],
)
def test_paths(layout: Layout, ledger_id: int, path: str) -> None:
    """Every layout cuts the digits in its own way, and the hierarchical one has two ways."""
    assert layout.path("/ledgers", ledger_id) == layout.path("/ledgers/", ledger_id) == path


@given(st.sampled_from(Layout), st.sets(st.integers(0, 9_999_999_999) | st.integers(0, 2**63 - 1), min_size=2))
def test_ledgers_have_different_paths(layout: Layout, ledger_ids: set[int]) -> None:
    """A layout gives each ledger a path of its own, or refuses an id with too many digits."""
    short = layout in {Layout.FLAT, Layout.LEGACY_HIERARCHICAL}
    paths = []
    for ledger_id in ledger_ids:
        if short and ledger_id > 9_999_999_999:
            with pytest.raises(InvalidInput):
                layout.path("/a/b", ledger_id)
        else:
            paths.append(layout.path("/a/b", ledger_id))
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("ledger_id", [-1, 2**63])
def test_ids_out_of_range_have_no_path(ledger_id: int) -> None:
    """Ids are signed 64-bit and not negative."""
    with pytest.raises(InvalidInput):
        Layout.HIERARCHICAL.path("/ledgers", ledger_id)


@pytest.mark.parametrize(
    ("content", "layout"),
    [
        (golden.LAYOUT, Layout.HIERARCHICAL),
        (golden.LAYOUT + b"\n", Layout.HIERARCHICAL),
        (f"2\n{LONG}LegacyHierarchicalLedgerManagerFactory:1".encode(), Layout.LEGACY_HIERARCHICAL),
        (f"2\n{LONG}LongHierarchicalLedgerManagerFactory:1".encode(), Layout.LONG_HIERARCHICAL),
        (f"2\n{LONG}FlatLedgerManagerFactory:1".encode(), Layout.FLAT),
        (b"2\norg.apache.pulsar.metadata.bookkeeper.PulsarLedgerManagerFactory:1", Layout.HIERARCHICAL),
        (None, Layout.HIERARCHICAL),
    ],
)
def test_a_cluster_says_its_layout(content: bytes | None, layout: Layout) -> None:
    """The factory's class name tells; Pulsar's own clusters have no such node."""
    assert decode_layout(content, path="/ledgers/LAYOUT") is layout


def test_ledgers_outside_zookeeper_are_refused() -> None:
    """A manager that keeps ledgers elsewhere is the operator's business, and no damage."""
    with pytest.raises(InvalidConfig, match="MSLedgerManagerFactory"):
        decode_layout(f"2\n{LONG}MSLedgerManagerFactory:1".encode(), path="/ledgers/LAYOUT")


@pytest.mark.parametrize("content", [b"", b"2", b"2\n", b"3\na.FlatLedgerManagerFactory:1", b"2\nFlat", b"2\n\xff:1"])
def test_what_is_no_layout_is_damage(content: bytes) -> None:
    """Another version, and text without factory or version."""
    with pytest.raises(CorruptData):
        decode_layout(content, path="/ledgers/LAYOUT")


@given(st.binary(max_size=40))
def test_arbitrary_layouts_give_typed_errors(content: bytes) -> None:
    """Noise is damage or an unknown manager."""
    with pytest.raises((CorruptData, InvalidConfig)):
        decode_layout(content, path="/ledgers/LAYOUT")


def test_other_paths() -> None:
    """The layout's node, and the two places where a bookie may be registered."""
    assert layout_path("/ledgers/") == "/ledgers/LAYOUT"
    assert registration_paths("/ledgers", "a:1") == ("/ledgers/available/a:1", "/ledgers/available/readonly/a:1")
    for bookie_id in ("", "a/b"):
        with pytest.raises(InvalidInput):
            registration_paths("/ledgers", bookie_id)
