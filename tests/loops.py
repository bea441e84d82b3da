"""Both loops over entries, the compiled one and the one in Python, for the tests of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.core import native

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_BUILT = "offloaderd-native was not built: it needs a C compiler and Python's headers"
LOOPS = ("avro_columns", "batch_columns", "batch_entries", "framed_payloads", "stored_payloads")


def in_python(patch: pytest.MonkeyPatch) -> None:
    """Let all loops be those in Python."""
    for name in LOOPS:
        patch.setattr(native, name, lambda *_: None)


@pytest.fixture(scope="module", params=["compiled", "python"])
def both_loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test with each; modules ask for it by `usefixtures`."""
    if request.param == "compiled" and not native.IN_USE:
        pytest.skip(NOT_BUILT)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            in_python(patch)
        yield
