"""What the nodes hold, one module a kind: a frozen value, `encode(value)` and `decode(data, path=...)`.

Decoding anything that is not such a record raises CorruptData with the node's path as its key.
"""
