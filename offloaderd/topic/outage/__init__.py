"""A topic while the object store does not take its entries."""
