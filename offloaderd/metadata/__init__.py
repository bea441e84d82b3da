"""Metadata: what is committed, who owns what, which policies hold."""
