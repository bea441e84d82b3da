"""Seeking by time, message index or sequence number."""
