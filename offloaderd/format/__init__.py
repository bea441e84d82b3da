"""The bytes that offloaderd stores and reads: pure functions, no I/O; FORMAT.md beside this file is the specification.

Encoders give lists of chunks that reference the payloads, for the caller to join once. Decoders trust nothing: any
input that does not follow the specification raises CorruptData, and nothing is allocated on the word of a length
field before that length has been compared with the input.
"""
