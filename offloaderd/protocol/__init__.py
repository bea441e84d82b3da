"""What services and clients share: messages, conversion, errors."""
