"""offloaderd: streaming tiered storage for Apache Pulsar (PIP-76, PIP-17, PIP-70, PIP-73)."""

__version__ = "0.1.0"
