"""How long tests wait for what has to come."""

import os

PATIENCE_S = float(os.environ.get("TEST_PATIENCE_S", "300"))
"""Long, for a busy machine is no failure: only a test that fails waits so long, and none has another bound.

Without a guard a test waits for what never comes (tools/invariants.py)."""
