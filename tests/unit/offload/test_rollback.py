"""Going back to a stock broker: streaming segments become whole ledgers, and nothing is lost on the way."""

from __future__ import annotations

from tests.unit.offload.rolling import map_of, read_all, rolling, shape, streamed


async def test_closed_ledgers_become_objects_and_the_open_one_stays() -> None:
    """Ledger by ledger; segments that have lost all of their slices are deleted."""
    rig, written = await streamed(15, 20, 10)
    assert shape(await map_of(rig)) == ["0:0-9 1:0-4", "1:5-9 2:0-9 3:0-4", "3:5-9 4:0-4"]
    async with rolling(rig) as work:
        await work.order()
        done = await work.ended()
    assert shape(await map_of(rig)) == ["V1 0:0-9", "V1 1:0-9", "V1 2:0-9", "V1 3:0-9", "4:0-4"]
    assert (done.done, done.left, done.done_bytes) == (4, 0, 4000)
    assert await read_all(rig) == written
    assert await rig.leftovers() == []
