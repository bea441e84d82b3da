"""Upkeep of stored segments: retention, grants, deletion, garbage collection, rebuild, verification, explanation."""
