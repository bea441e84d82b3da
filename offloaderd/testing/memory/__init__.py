"""Adapters in memory, with the rules of the real ones."""
