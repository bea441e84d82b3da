"""The API of services and clients: messages, conversion, errors."""
