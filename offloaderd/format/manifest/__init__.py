"""The manifest beside a data object (FORMAT.md, section 4)."""
