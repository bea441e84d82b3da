"""What a new owner does with the attempt that it finds."""
