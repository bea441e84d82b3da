"""Objects of whole ledgers (PIP-17): FORMAT.md, section 2."""
