"""Stored segments, compared with what was written."""
