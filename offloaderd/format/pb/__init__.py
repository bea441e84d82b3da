"""Generated messages of all stored data."""
