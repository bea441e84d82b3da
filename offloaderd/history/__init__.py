"""Entries from before the live edge: boundaries, plan, adoption, rewriting."""
