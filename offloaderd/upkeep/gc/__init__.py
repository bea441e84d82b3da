"""Garbage collection."""
