"""Benchmarks against real servers, each beside the same bytes moved by the bare S3 client: `python -m bench --help`."""
