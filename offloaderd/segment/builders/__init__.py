"""Entries cut into blocks and parts, of segments and of whole ledgers."""
