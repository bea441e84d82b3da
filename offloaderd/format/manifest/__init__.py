"""The manifest beside a V2 object (FORMAT.md, section 4)."""
