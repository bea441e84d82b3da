"""Generated messages of everything that is stored."""
