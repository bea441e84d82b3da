"""Commands about what is stored: segments, ledgers, garbage, grants."""
