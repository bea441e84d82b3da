"""The benchmarks' own arithmetic and pages; what they measure is run by `make bench`."""
