"""Offloads that were requested by hand."""
