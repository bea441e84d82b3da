"""How long tests wait for what has to come."""

import os

PATIENCE_S = float(os.environ.get("TEST_PATIENCE_S", "90"))
"""Long, for a busy machine is no failure; without a guard a test waits for what never comes (tools/invariants.py)."""
