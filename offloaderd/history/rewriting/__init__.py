"""Stored segments, written anew in another format."""
