"""Collection of objects that nothing refers to."""
