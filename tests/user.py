"""A configuration directory for the user that tests are; a pytest plugin.

Contexts and the link to a running standalone are in it, and those of whoever runs the tests would name daemons.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Make one for this process and its children."""
    user = tempfile.TemporaryDirectory(prefix="offloaderd-user-")
    config.add_cleanup(user.cleanup)
    os.environ["XDG_CONFIG_HOME"] = user.name
