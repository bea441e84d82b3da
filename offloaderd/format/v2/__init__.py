"""Objects of segments (PIP-76): FORMAT.md, section 3."""
