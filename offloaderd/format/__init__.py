"""The bytes that offloaderd stores and reads: pure functions, no I/O; FORMAT.md beside this file is the specification.

Encoders return lists of chunks that reference the payloads; the caller joins them once. Decoders raise CorruptData for
any input that violates the specification, and compare each length field with the input before they allocate memory.
"""
