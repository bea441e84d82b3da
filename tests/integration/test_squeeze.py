"""The store takes a tenth of what is written: memory stays below its limit, nothing is lost, the lag goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.processes import Site
from tests.real.squeeze import KINDS, MIB, squeeze

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import S3Server

SECONDS = 10
BYTES_PER_S = 10 * MIB


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tenth_of_the_line(
    kind: str, tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str
) -> None:
    """Ten seconds of what `python -m tests.real.squeeze` does for ten minutes."""
    seen = await squeeze(
        Site.at(tmp_path, zookeeper, s3_server, s3_bucket), kind, seconds=SECONDS, bytes_per_s=BYTES_PER_S
    )
    assert seen.carried_bytes < seen.written_bytes / 5, "it was squeezed"
    assert seen.lag_bytes > 40 * MIB, "it fell behind by more than memory holds"
    assert (seen.spilled_bytes > 20 * MIB) == (kind == "spill")
    assert seen.peak_bytes < seen.limit_bytes
