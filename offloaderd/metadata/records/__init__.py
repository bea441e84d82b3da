"""Records of the nodes, one module a kind: a frozen value, `encode(value)` and `decode(data, path=...)`.

`decode` raises CorruptData with the node's path as its key for bytes that are not such a record.
"""
