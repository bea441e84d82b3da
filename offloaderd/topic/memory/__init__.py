"""The memory that topics tail in: a buffer for each, one budget for all."""
