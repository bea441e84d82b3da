"""The segments that a query reads, and their rows."""
