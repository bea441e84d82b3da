"""Records that an owner writes under its claim; the epoch fences each write."""
