"""The object stores that segments are stored in."""
